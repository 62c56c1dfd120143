"""Flax NNX training: Optax's AdamW, a cosine schedule, the best epoch kept, and a restart at the last whole epoch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from tasks.artifact import flush
from tasks.data.dataset import Arrays, Split, batches, labels_of
from tasks.data.golden import ask
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature, TensorSpec
from tasks.sources import flax as source
from tasks.sources.learning import Epoch, finite_loss, keep_answers, labelled
from tasks.train.facts import TrainFacts, only_input
from tasks.workspace import Workspace

if TYPE_CHECKING:
    from flax import nnx


class FlaxTraining(Frozen):
    """Train a small convolutional network in Flax NNX from scratch."""

    kind: Literal["flax"] = "flax"
    widths: tuple[PositiveInt, ...] = Field(
        (16, 32, 64), min_length=1, description="channels behind each convolution; each one halves the picture"
    )
    epochs: int = Field(12, ge=1, le=1000)
    patience: int = Field(4, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images a step")
    learning_rate: float = Field(5e-3, gt=0, description="of AdamW, at the start of the cosine")
    weight_decay: float = Field(0.01, ge=0)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    seed: int = Field(0, ge=0)
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    packages: ClassVar[dict[str, str]] = {"flax": "jax", "optax": "jax"}

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none."""
        return ()

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        import flax

        data = labelled(splits, "train", "validation", "test")
        name, recipe = only_input(signature), self._recipe(signature)
        network = recipe.build(self.seed)
        loop = _Loop(self, recipe, network, data, name, out)
        loop.run()
        signature = self._signed(signature)
        facts = TrainFacts(
            framework=f"flax {flax.__version__}",
            architecture=f"convolutions {'-'.join(str(width) for width in self.widths)}",
            parameters=loop.parameters,
            best_epoch=loop.best_epoch,
            stopped_early=loop.stopped_early,
            history=tuple(loop.history),
            signature=signature,
        )
        check = finite_loss(*loop.outcome)
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        source.put_weights(network, loop.best_weights)
        parts = source.parts_of(network)

        def predict(inputs: Arrays) -> Arrays:
            return {self.output_name: loop.scores(parts, inputs[name])}

        golden = ask(predict, data["test"], seed=self.seed)
        artifacts = keep_answers(golden, predict, data, signature, out)
        path = out.folder / "model.npz"
        source.save(path, recipe, network)
        artifacts["model"] = out.keep(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> source.SmallCnn:
        shape = signature.inputs[0].shape[1:]
        if len(shape) != 3 or signature.layout == "none":
            raise StageError(
                f"train.kind: flax takes pictures; the data has samples of shape {shape}, layout {signature.layout}. "
                "Take another kind, or data of pictures (data.layout: NHWC)"
            )
        numbers = [int(n) for n in shape]
        channels, height, width = numbers if signature.layout == "NCHW" else (numbers[2], *numbers[:2])
        return source.SmallCnn(
            channels=channels,
            classes=len(signature.labels),
            height=height,
            width=width,
            layout=signature.layout,
            widths=self.widths,
        )

    def _signed(self, signature: Signature) -> Signature:
        """Return the signature of the trained model: it takes floats, whatever type the data has."""
        scores = TensorSpec(name=self.output_name, dtype="float32", shape=("batch", len(signature.labels)))
        inputs = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
        return signature.replace(inputs=inputs, outputs=(scores,), answer=self.output_name)


class _Loop:
    """The loop, and the state that a restart needs. An epoch's order depends on the seed and its number alone."""

    def __init__(
        self,
        config: FlaxTraining,
        recipe: source.SmallCnn,
        network: "nnx.Module",
        data: dict[str, Split],
        name: str,
        out: Workspace,
    ) -> None:
        import jax
        import optax
        from flax import nnx

        self.config, self.recipe, self.data, self.name, self.out = config, recipe, data, name, out
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.rate = optax.cosine_decay_schedule(config.learning_rate, config.epochs * self.steps)
        self.optimizer = optax.adamw(self.rate, weight_decay=config.weight_decay)
        self.graph, (weights, statistics) = nnx.graphdef(network), source.parts_of(network)
        self.state: tuple[Any, Any, Any] = (weights, statistics, self.optimizer.init(weights))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(weights))
        self.step, self.scores = jax.jit(self._step), source.scores_of(network, recipe)
        self.history: list[Epoch] = []
        self.best_epoch = 0
        self.best_weights: source.Flat = {}
        self.last_loss = 0.0
        self.checkpoint = out.folder / "checkpoint.npz"

    @property
    def stopped_early(self) -> bool:
        left = len(self.history) < self.config.epochs
        return left and len(self.history) - self.best_epoch >= self.config.patience

    @property
    def outcome(self) -> tuple[float, str]:
        """The loss that decides whether there is a model, and where it was met."""
        if not np.isfinite(self.last_loss):
            return self.last_loss, f"epoch {len(self.history) + 1}, training images"
        if not self.best_epoch:  # batch statistics can keep the training loss finite while the model answers NaN
            return self.history[-1].validation_loss, f"epoch {len(self.history)}, validation images"
        return self.last_loss, f"epoch {len(self.history)}"

    def run(self) -> None:
        self._resume()
        while len(self.history) < self.config.epochs and not self.stopped_early:
            number = len(self.history) + 1
            train_loss = self._epoch(number)
            if not np.isfinite(train_loss):
                return
            validation_loss, accuracy = self._validate()
            epoch = Epoch(
                epoch=number,
                train_loss=train_loss,
                validation_loss=validation_loss,
                validation_accuracy=accuracy,
                learning_rate=float(self.rate(number * self.steps)),
            )
            self.history.append(epoch)
            finite = [e.validation_loss for e in self.history if np.isfinite(e.validation_loss)]
            if finite and validation_loss <= min(finite):
                self.best_epoch = number
                self.best_weights = source.weights_of(self._network(*self.state[:2]))
            self._save_checkpoint()
            self.out.progress(number, self.config.epochs, "epoch", **epoch.model_dump(exclude={"epoch"}))

    def _network(self, weights: Any, statistics: Any) -> "nnx.Module":
        from flax import nnx

        network: nnx.Module = nnx.merge(self.graph, weights, statistics, copy=True)
        return network

    def _step(self, state: tuple[Any, Any, Any], pictures: Any, labels: Any) -> tuple[tuple[Any, Any, Any], Any]:
        """Return the state after one step, and the loss before it; compiled."""
        import jax
        import optax

        weights, statistics, memory = state

        def loss(weights: Any) -> tuple[Any, Any]:
            network: Any = self._network(weights, statistics)
            network.train()
            value = self._loss(network(pictures), labels)
            return value, source.parts_of(network)[1]

        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        updates, memory = self.optimizer.update(gradients, memory, weights)
        return (optax.apply_updates(weights, updates), statistics, memory), value

    def _loss(self, scores: Any, labels: Any) -> Any:
        import jax
        import optax

        wanted = optax.smooth_labels(jax.nn.one_hot(labels, self.recipe.classes), self.config.label_smoothing)
        return optax.softmax_cross_entropy(scores, wanted).mean()

    def _epoch(self, number: int) -> float:
        split, size = self.data["train"], self.config.batch_size
        labels = labels_of(split)
        order = np.random.default_rng([self.config.seed, number]).permutation(len(split))
        order = np.resize(order, self.steps * size)  # a last step of another size would be compiled anew
        total = 0.0
        for step in range(self.steps):
            chosen = order[step * size : (step + 1) * size]
            pictures = self.recipe.prepare(split.take(chosen)[self.name])
            self.state, loss = self.step(self.state, pictures, labels[chosen])
            self.last_loss = float(loss)
            if not np.isfinite(self.last_loss):
                return self.last_loss
            total += self.last_loss
            self.out.progress((number - 1) * self.steps + step + 1, self.config.epochs * self.steps, "batch")
        return total / self.steps

    def _validate(self) -> tuple[float, float]:
        split = self.data["validation"]
        parts = [self.scores(self.state[:2], inputs[self.name]) for inputs in batches(split, source.BATCH)]
        scores, labels = np.concatenate(parts), labels_of(split)
        return float(self._loss(scores, labels)), float(np.mean(scores.argmax(1) == labels))

    def _save_checkpoint(self) -> None:
        import jax

        arrays = {f"state/{place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(self.state))}
        arrays |= {f"best/{name}": array for name, array in self.best_weights.items()}
        told = {
            "history": [epoch.model_dump(mode="json") for epoch in self.history],
            "best_epoch": self.best_epoch,
            "last_loss": self.last_loss,
        }
        temporary = self.checkpoint.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, told=np.array(json.dumps(told)), **arrays)
        flush(temporary)
        temporary.replace(self.checkpoint)

    def _resume(self) -> None:
        import jax
        import jax.numpy as jnp

        if not self.checkpoint.exists():
            return
        with np.load(self.checkpoint, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        shape: Any = jax.tree.structure(self.state)
        self.state = jax.tree.unflatten(shape, [jnp.asarray(arrays[f"state/{n}"]) for n in range(shape.num_leaves)])
        self.best_weights = {name.removeprefix("best/"): a for name, a in arrays.items() if name.startswith("best/")}
        told = json.loads(str(arrays["told"]))
        self.history = [Epoch.model_validate(epoch) for epoch in told["history"]]
        self.best_epoch, self.last_loss = told["best_epoch"], told["last_loss"]

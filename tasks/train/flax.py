"""Flax NNX training: Optax's AdamW, a cosine schedule, the best epoch kept, and a restart at the last whole epoch."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import fsync
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split, batches, require_labels
from gauntlet.frameworks.flax import network as source
from gauntlet.frameworks.training import LearningConfig, TrainingLoop, require_labelled, store_golden_and_predictions
from tasks.train.facts import TrainFacts, picture_shape, single_input, with_scores

if TYPE_CHECKING:
    from flax import nnx


class FlaxTraining(LearningConfig):
    """Train a small convolutional network in Flax NNX from scratch."""

    kind: Literal["flax"] = "flax"
    widths: tuple[PositiveInt, ...] = Field(
        (16, 32, 64), min_length=1, description="channels behind each convolution; each one halves the picture"
    )
    epochs: int = Field(12, ge=1, le=1000)
    patience: int = Field(4, ge=1, description="stop after this many epochs without a lower validation loss")
    learning_rate: float = Field(5e-3, gt=0, description="of AdamW, at the start of the cosine")
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    packages: ClassVar[dict[str, str]] = {"flax": "jax", "optax": "jax"}

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        import flax

        data = require_labelled(splits, "train", "validation", "test")
        name, recipe = single_input(signature), self._recipe(signature)
        network = recipe.build(self.seed)
        loop = _Loop(self, recipe, network, data, name, workspace)
        check = loop.run()
        signature = with_scores(signature, self.output_name)
        facts = TrainFacts(
            framework=f"flax {flax.__version__}",
            architecture=f"convolutions {'-'.join(str(width) for width in self.widths)}",
            parameters=loop.parameters,
            signature=signature,
            **loop.history.facts(),
        )
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        source.set_weights(network, loop.best_weights)
        parts = source.split_state(network)

        def predict(inputs: NamedArrays) -> NamedArrays:
            return {self.output_name: loop.scores(parts, inputs[name])}

        golden = record_golden(predict, data["test"], seed=self.seed)
        artifacts = store_golden_and_predictions(golden, predict, data, signature, workspace)
        path = workspace.folder / "model.npz"
        source.save(path, recipe, network)
        artifacts["model"] = workspace.store_file(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> source.SmallCnn:
        remedy = "Take another kind, or image data (data.layout: NHWC)"
        channels, height, width = picture_shape(signature, "train.kind: flax", remedy)
        return source.SmallCnn(
            channels=channels,
            classes=len(signature.labels),
            height=height,
            width=width,
            layout=signature.layout,
            widths=self.widths,
        )


class _Loop(TrainingLoop):
    """The loop, and the state that a restart needs."""

    def __init__(
        self,
        config: FlaxTraining,
        recipe: source.SmallCnn,
        network: "nnx.Module",
        data: dict[str, Split],
        name: str,
        workspace: Workspace,
    ) -> None:
        import jax
        import optax
        from flax import nnx

        super().__init__(config, workspace)
        self.config, self.recipe, self.data, self.name = config, recipe, data, name
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.rate = optax.cosine_decay_schedule(config.learning_rate, config.epochs * self.steps)
        self.optimizer = optax.adamw(self.rate, weight_decay=config.weight_decay)
        self.graph, (weights, statistics) = nnx.graphdef(network), source.split_state(network)
        self.state: tuple[Any, Any, Any] = (weights, statistics, self.optimizer.init(weights))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(weights))
        self.step, self.scores = jax.jit(self._step), source.scores_function(network, recipe)
        self.best_weights: NamedArrays = {}
        self.checkpoint = workspace.folder / "checkpoint.npz"

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
            return value, source.split_state(network)[1]

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
        labels = require_labels(split)
        order = np.random.default_rng([self.config.seed, number]).permutation(len(split))
        order = np.resize(order, self.steps * size)  # a last step of another size would be compiled anew
        total = 0.0
        for step in range(self.steps):
            chosen = order[step * size : (step + 1) * size]
            pictures = self.recipe.prepare(split.take(chosen)[self.name])
            self.state, loss = self.step(self.state, pictures, labels[chosen])
            self.history.last_loss = float(loss)
            if not np.isfinite(self.history.last_loss):
                return self.history.last_loss
            total += self.history.last_loss
            self.out.progress((number - 1) * self.steps + step + 1, self.config.epochs * self.steps, "batch")
        return total / self.steps

    def _validate(self) -> tuple[float, float]:
        split = self.data["validation"]
        parts = [self.scores(self.state[:2], inputs[self.name]) for inputs in batches(split, source.BATCH)]
        scores, labels = np.concatenate(parts), require_labels(split)
        return float(self._loss(scores, labels)), float(np.mean(scores.argmax(1) == labels))

    def _rate(self, number: int) -> float:
        return float(self.rate(number * self.steps))

    def _save(self, *, best: bool) -> None:
        import jax

        if best:
            self.best_weights = source.get_weights(self._network(*self.state[:2]))
        arrays = {f"state/{place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(self.state))}
        arrays |= {f"best/{name}": array for name, array in self.best_weights.items()}
        temporary = self.checkpoint.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, history=np.array(json.dumps(self.history.dump())), **arrays)
        fsync(temporary)
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
        self.history.restore(json.loads(str(arrays["history"])))

"""Flax NNX training: Optax's AdamW, a cosine schedule, and the best epoch kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from frameworks.epochs import LABEL_SMOOTHING, ClassifierLoop
from frameworks.jax import network as flax_network
from frameworks.training_data import SCORES, image_fields, single_input, with_scores
from gauntlet.core.arrays import Array, NamedArrays, read_arrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split, Splits, require_labels
from gauntlet.frameworks.training import LoopConfig, require_labelled
from gauntlet.onnx_model.recognition import Operators
from tasks.train.base import Training
from tasks.train.facts import TrainFacts, report_model

if TYPE_CHECKING:
    from flax import nnx

State = tuple[Any, Any, Any]
"""Weights, batch statistics, and the optimizer's state."""


class FlaxTraining(Training, LoopConfig):
    """Train a small convolutional network in Flax NNX from scratch."""

    kind: Literal["flax"] = "flax"
    operators: ClassVar[Operators] = "convolutions"
    widths: tuple[PositiveInt, ...] = Field((16, 32, 64), min_length=1, description="channels of each convolution")
    epochs: int = Field(12, ge=1, le=1000)
    patience: int = Field(4, ge=1, description="stop after this many epochs without a lower validation loss")
    learning_rate: float = Field(5e-3, gt=0, description="of AdamW, at the start of the cosine schedule")

    packages: ClassVar[dict[str, str]] = {"flax": "jax", "optax": "jax"}
    from_scratch: ClassVar[bool] = True

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        import flax

        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        image = image_fields(signature, "train.kind: flax", "use another train.kind, or image data (data.layout: NHWC)")
        spec = flax_network.SmallCnn(layout=signature.layout, widths=self.widths, **image)
        network = spec.build(self.seed)
        loop = _FlaxTrainingLoop(self, spec, network, data, name, workspace)
        with flax_network.training_device(self.device):
            check = loop.run()
        facts = TrainFacts(
            framework=f"flax {flax.__version__}",
            architecture=f"convolutions {'-'.join(str(width) for width in self.widths)}",
            parameters=loop.parameters,
            signature=with_scores(signature),
            **loop.history.facts(),
        )
        if not check.passed:
            return Report(facts=facts, checks=(check,))
        flax_network.set_weights(network, loop.best_weights)
        state = flax_network.split_state(network)

        def predict(inputs: NamedArrays) -> NamedArrays:
            return {SCORES: loop.scores(state, inputs[name])}

        golden = record_golden(predict, data["test"])
        path = workspace.folder / "model.npz"
        flax_network.save(path, spec, network)
        return report_model(facts, golden, predict, data, workspace, path, checks=(check,))


class _FlaxTrainingLoop(ClassifierLoop):
    checkpoint_name = "checkpoint.npz"

    def __init__(
        self,
        config: FlaxTraining,
        spec: flax_network.SmallCnn,
        network: "nnx.Module",
        data: dict[str, Split],
        name: str,
        workspace: Workspace,
    ) -> None:
        import jax
        import optax
        from flax import nnx

        super().__init__(config, data, workspace)
        self.config, self.spec, self.name = config, spec, name
        self.rate = optax.cosine_decay_schedule(config.learning_rate, config.epochs * self.steps)
        self.optimizer = optax.adamw(self.rate, weight_decay=config.weight_decay)
        self.graph, (weights, statistics) = nnx.graphdef(network), flax_network.split_state(network)
        self.state: State = (weights, statistics, self.optimizer.init(weights))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(weights))
        self.step, self.scores = jax.jit(self._step), flax_network.scores_function(network, spec)
        self.best_weights: NamedArrays = {}

    def _network(self, weights: Any, statistics: Any) -> "nnx.Module":
        from flax import nnx

        network: nnx.Module = nnx.merge(self.graph, weights, statistics, copy=True)
        return network

    def _step(self, state: State, images: Any, labels: Any) -> tuple[State, Any]:
        """Return the state after one step, and the loss before it; compiled."""
        import jax
        import optax

        weights, statistics, memory = state

        def loss(weights: Any) -> tuple[Any, Any]:
            network: Any = self._network(weights, statistics)
            network.train()
            return self._loss(network(images), labels), flax_network.split_state(network)[1]

        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        updates, memory = self.optimizer.update(gradients, memory, weights)
        return (optax.apply_updates(weights, updates), statistics, memory), value

    def _loss(self, scores: Any, labels: Any) -> Any:
        import jax
        import optax

        targets = optax.smooth_labels(jax.nn.one_hot(labels, self.spec.classes), LABEL_SMOOTHING)
        return optax.softmax_cross_entropy(scores, targets).mean()

    def _losses(self, number: int) -> Iterator[float]:
        split, size = self.data["train"], self.config.batch_size
        labels = require_labels(split)
        order = np.random.default_rng([self.config.seed, number]).permutation(len(split))
        order = np.resize(order, self.steps * size)  # a last step of another size would be compiled again
        for chosen in order.reshape(self.steps, size):
            self.state, loss = self.step(self.state, self.spec.prepare(split.take(chosen)[self.name]), labels[chosen])
            yield float(loss)

    def _scores(self, inputs: NamedArrays) -> Array:
        return self.scores(self.state[:2], inputs[self.name])

    def _validation_loss(self, scores: Array, labels: npt.NDArray[np.int64]) -> float:
        return float(self._loss(scores, labels))

    def _rate(self, number: int) -> float:
        return float(self.rate(number * self.steps))

    def _save(self, path: Path, *, best: bool) -> None:
        import jax

        if best:
            self.best_weights = flax_network.get_weights(self._network(*self.state[:2]))
        arrays = {f"state/{index}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(self.state))}
        arrays |= {f"best/{name}": array for name, array in self.best_weights.items()}
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, history=np.array(json.dumps(self.history.dump())), **arrays)

    def _resume(self) -> None:
        import jax
        import jax.numpy as jnp

        arrays = read_arrays(self.checkpoint)
        structure: Any = jax.tree.structure(self.state)
        leaves = [jnp.asarray(arrays[f"state/{index}"]) for index in range(structure.num_leaves)]
        self.state = jax.tree.unflatten(structure, leaves)
        self.best_weights = {name.removeprefix("best/"): a for name, a in arrays.items() if name.startswith("best/")}
        self.history.restore(json.loads(str(arrays["history"])))

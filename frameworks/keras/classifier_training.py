"""Keras training: a plateau lowers the learning rate, patience ends it, and the best epoch is kept."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, PositiveInt, model_validator

from frameworks.architecture_names import operators_of
from frameworks.epochs import require_weights_to_freeze
from frameworks.keras import initial_weights
from frameworks.keras.architectures import KerasNetworkSpec, check_name
from frameworks.keras.conversion import require_convertible
from frameworks.keras.expected_images import published_images
from frameworks.keras.files import save
from frameworks.keras.model import from_network
from frameworks.keras.tensorflow_setup import start_tensorflow
from frameworks.keras.training_loop import KerasLoopConfig, KerasTrainingLoop
from frameworks.normalization import normalization_checks
from frameworks.training_data import SCORES, image_fields, single_input, with_scores
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_labelled
from gauntlet.frameworks.trial_run import ExpectedImages
from gauntlet.onnx_model.recognition import Operators
from tasks.train.base import Training
from tasks.train.facts import InitialWeights, TrainFacts, report_model

BATCH_NORM_MOMENTUM = 0.9
"""Keras's own, 0.99, suits longer trainings."""
Architecture = Annotated[str, AfterValidator(check_name)]


class KerasTraining(Training, KerasLoopConfig):
    """Train a Keras network."""

    kind: Literal["keras"] = "keras"
    architecture: Architecture = Field("efficientnetb0", description="small-cnn, or a keras.applications classifier")
    weights: str | None = Field(
        None, description="a file of network.save_weights (.weights.h5), or imagenet; default: random"
    )
    trainable: Literal["all", "head"] | PositiveInt = Field(
        "all", description="layers to train: all, head (the last one), or a number of the last"
    )

    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}
    from_scratch: ClassVar[bool] = True

    @model_validator(mode="after")
    def _freezes_pretrained_weights(self) -> Self:
        require_weights_to_freeze(self.weights, self.trainable)
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: that of the weights."""
        file = initial_weights.weights_file(self.weights)
        return (file,) if file else ()

    @property
    def operators(self) -> Operators:
        """What the architecture's name tells."""
        return operators_of(self.architecture)

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        keras = start_tensorflow()
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        signature = with_scores(signature)
        what, fix = f"train.architecture: {self.architecture}", "use another train.kind, or image data"
        image = image_fields(signature, what, fix)
        shape, momentum = (image["height"], image["width"], image["channels"]), BATCH_NORM_MOMENTUM
        spec = KerasNetworkSpec(
            architecture=self.architecture,
            shape=shape,
            classes=image["classes"],
            batch_norm_momentum=momentum,
            seed=self.seed,
        )
        network = spec.build()
        initial = self._start(network, spec)
        require_convertible(network)
        loop = KerasTrainingLoop(self, network, data, signature, workspace)
        checks = (loop.run(), *normalization_checks(signature.preprocessing, self._expected(spec)))
        facts = TrainFacts(
            framework=f"keras {keras.__version__}",
            architecture=self.architecture,
            parameters=network.count_params(),
            signature=signature,
            initial_weights=initial,
            **loop.history.facts(),
        )
        if not checks[0].passed:
            return Report(facts=facts, checks=checks)
        loop.restore_best()
        model = from_network(network)

        def predict(inputs: NamedArrays) -> NamedArrays:
            return {SCORES: model.predict({name: inputs[name]}, signature)[model.outputs[0]]}

        golden = record_golden(predict, data["test"])
        path = workspace.folder / "model.keras"
        save(path, network)
        return report_model(facts, golden, predict, data, workspace, path, checks=checks)

    def _expected(self, spec: KerasNetworkSpec) -> ExpectedImages | None:
        """Return how Keras prepares images for published weights; None for random ones, and those of a file."""
        published = self.weights is not None and initial_weights.weights_file(self.weights) is None
        return published_images(spec.architecture, spec.shape) if published else None

    def _start(self, network: Any, spec: KerasNetworkSpec) -> InitialWeights | None:
        """Load the weights to start from, and freeze layers; return what was loaded."""
        if self.weights is None:
            return None
        file = initial_weights.weights_file(self.weights)
        replaced = initial_weights.load_file(network, file) if file else spec.load_published(network, self.weights)
        initial_weights.freeze(network, self.trainable)
        trained = sum(int(np.prod(variable.shape)) for variable in network.trainable_weights)
        source = file.name if file else self.weights
        return InitialWeights(source=source, replaced=replaced, trained_parameters=trained)

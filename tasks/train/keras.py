"""Keras training: a plateau lowers the rate, patience ends it, the best epoch is kept, and a kill costs one epoch."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.keras.architectures import KerasNetworkSpec, check_name
from gauntlet.frameworks.keras.files import save
from gauntlet.frameworks.keras.model import from_network
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.frameworks.keras.training_loop import KerasLoopConfig, KerasTrainingLoop
from gauntlet.frameworks.training import require_labelled, store_golden_and_predictions
from tasks.train.facts import TrainFacts, picture_shape, single_input, with_scores


class KerasTraining(KerasLoopConfig):
    """Train a Keras network from scratch."""

    kind: Literal["keras"] = "keras"
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "efficientnetb0", description="small-cnn, or a classifier of keras.applications in small letters"
    )
    batch_norm_momentum: float = Field(
        0.9, ge=0, lt=1, description="how much of the old mean stays at each step; Keras's 0.99 is for long trainings"
    )
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        keras = start_tensorflow()
        data = require_labelled(splits, "train", "validation", "test")
        name = single_input(signature)
        signature = with_scores(signature, self.output_name)
        network = self._recipe(signature).build()
        loop = KerasTrainingLoop(self, network, data, signature, workspace)
        check = loop.run()
        facts = TrainFacts(
            framework=f"keras {keras.__version__}",
            architecture=self.architecture,
            parameters=network.count_params(),
            signature=signature,
            **loop.history.facts(),
        )
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        loop.restore_best()
        model = from_network(network)

        def predict(asked: NamedArrays) -> NamedArrays:
            return {self.output_name: model.predict({name: asked[name]}, signature)[model.outputs[0]]}

        golden = record_golden(predict, data["test"], seed=self.seed)
        artifacts = store_golden_and_predictions(golden, predict, data, signature, workspace)
        path = workspace.folder / "model.keras"
        save(path, network)
        artifacts["model"] = workspace.store_file(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> KerasNetworkSpec:
        remedy = "Take another kind, or image data"
        channels, height, width = picture_shape(signature, f"train.architecture: {self.architecture}", remedy)
        return KerasNetworkSpec(
            architecture=self.architecture,
            shape=(height, width, channels),
            classes=len(signature.labels),
            batch_norm_momentum=self.batch_norm_momentum,
            seed=self.seed,
        )

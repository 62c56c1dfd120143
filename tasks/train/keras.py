"""Keras training: a plateau lowers the learning rate, patience ends it, and the best epoch is kept."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.keras.architectures import KerasNetworkSpec, check_name
from gauntlet.frameworks.keras.files import save
from gauntlet.frameworks.keras.model import from_network
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.frameworks.keras.training_loop import KerasLoopConfig, KerasTrainingLoop
from gauntlet.frameworks.training import require_labelled
from tasks.train.facts import TrainFacts, image_fields, report_model, single_input, with_scores

Architecture = Annotated[str, AfterValidator(check_name)]


class KerasTraining(KerasLoopConfig):
    """Train a Keras network from scratch."""

    kind: Literal["keras"] = "keras"
    architecture: Architecture = Field("efficientnetb0", description="small-cnn, or a keras.applications classifier")
    batch_norm_momentum: float = Field(0.9, ge=0, lt=1, description="momentum; Keras's 0.99 suits longer trainings")
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and record its golden outputs. See `tasks.train.train`."""
        keras = start_tensorflow()
        data, name = require_labelled(splits, "train", "validation", "test"), single_input(signature)
        signature = with_scores(signature, self.output_name)
        what, fix = f"train.architecture: {self.architecture}", "use another train.kind, or image data"
        image = image_fields(signature, what, fix)
        shape, momentum = (image["height"], image["width"], image["channels"]), self.batch_norm_momentum
        network = KerasNetworkSpec(
            architecture=self.architecture,
            shape=shape,
            classes=image["classes"],
            batch_norm_momentum=momentum,
            seed=self.seed,
        ).build()
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

        def predict(inputs: NamedArrays) -> NamedArrays:
            return {self.output_name: model.predict({name: inputs[name]}, signature)[model.outputs[0]]}

        golden = record_golden(predict, data["test"], seed=self.seed)
        path = workspace.folder / "model.keras"
        save(path, network)
        return report_model(facts, golden, predict, data, workspace, path, checks=(check,))

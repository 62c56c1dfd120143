"""Keras training: a plateau lowers the rate, patience ends it, the best epoch is kept, and a kill costs one epoch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from tasks.data.augment import Augment
from tasks.data.dataset import Arrays, Split
from tasks.data.golden import ask
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature, TensorSpec
from tasks.sources.keras.answers import TO_NHWC, of_network
from tasks.sources.keras.architectures import Recipe, check_name
from tasks.sources.keras.files import save
from tasks.sources.keras.start import start
from tasks.sources.learning import finite_loss, keep_answers, labelled
from tasks.train.facts import TrainFacts, only_input
from tasks.train.keras_loop import Loop
from tasks.workspace import Workspace


class KerasTraining(Frozen):
    """Train a Keras network from scratch."""

    kind: Literal["keras"] = "keras"
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "efficientnetb0", description="small-cnn, or a classifier of keras.applications in small letters"
    )
    epochs: int = Field(10, ge=1, le=1000)
    patience: int = Field(4, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images a step")
    learning_rate: float = Field(2e-3, gt=0, description="of AdamW, until the first plateau")
    weight_decay: float = Field(0.01, ge=0)
    plateau_patience: int = Field(1, ge=1, description="epochs without a lower validation loss that make a plateau")
    plateau_factor: float = Field(0.3, gt=0, lt=1, description="what the learning rate is multiplied with then")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    batch_norm_momentum: float = Field(
        0.9, ge=0, lt=1, description="how much of the old mean stays at each step; Keras's 0.99 is for long trainings"
    )
    augment: Augment | None = Field(None, description="changes to the training pictures")
    seed: int = Field(0, ge=0)
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none."""
        return ()

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        keras = start()
        data = labelled(splits, "train", "validation", "test")
        name, classes = only_input(signature), len(signature.labels)
        scores = TensorSpec(name=self.output_name, dtype="float32", shape=("batch", classes))
        inputs = (signature.inputs[0].replace(dtype="float32"),)
        signature = signature.replace(inputs=inputs, outputs=(scores,), answer=self.output_name)
        network = self._recipe(signature).build()
        loop = Loop(self, network, data, signature, out)
        loop.run()
        facts = TrainFacts(
            framework=f"keras {keras.__version__}",
            architecture=self.architecture,
            parameters=network.count_params(),
            best_epoch=loop.best_epoch,
            stopped_early=loop.stopped_early,
            history=tuple(loop.history),
            signature=signature,
        )
        check = finite_loss(*loop.outcome)
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        loop.restore_best()
        model = of_network(network)

        def predict(asked: Arrays) -> Arrays:
            return {self.output_name: model.answer({name: asked[name]}, signature)[model.outputs[0]]}

        golden = ask(predict, data["test"], seed=self.seed)
        artifacts = keep_answers(golden, predict, data, signature, out)
        path = out.folder / "model.keras"
        save(path, network)
        artifacts["model"] = out.keep(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> Recipe:
        spec = signature.inputs[0]
        if len(spec.shape) != 4 or signature.layout == "none":
            raise StageError(
                f"the networks trained here take pictures; the data's '{spec.name}' has the shape {spec.shape} and the "
                f"layout {signature.layout}"
            )
        axes = [spec.shape[place] for place in TO_NHWC] if signature.layout == "NCHW" else [*spec.shape]
        height, width, channels = (int(axis) for axis in axes[1:])
        return Recipe(
            architecture=self.architecture,
            shape=(height, width, channels),
            classes=len(signature.labels),
            batch_norm_momentum=self.batch_norm_momentum,
            seed=self.seed,
        )

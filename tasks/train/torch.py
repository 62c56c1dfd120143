"""PyTorch training: AdamW, a cosine schedule, the best epoch kept, and a restart at the last whole epoch."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from tasks.artifact import flush
from tasks.data.augment import Augment
from tasks.data.dataset import Arrays, Split, batches, labels_of
from tasks.data.golden import ask
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature, TensorSpec
from tasks.sources import torch as source
from tasks.sources.torch.architectures import Known, check_name
from tasks.sources.torch.trace import trace
from tasks.train.facts import Epoch, TrainFacts, finite_loss, keep_answers, labelled, only_input
from tasks.train.sizes import DESCRIPTION, Sizes, at_other_sizes, with_dynamic_size
from tasks.workspace import Workspace

if TYPE_CHECKING:
    import torch


class TorchTraining(Frozen):
    """Train a PyTorch network from scratch."""

    kind: Literal["torch"] = "torch"
    architecture: Annotated[str, AfterValidator(check_name)] = Field(
        "resnet18",
        description="any torchvision classifier by name; resnet18 is its CIFAR form (torchvision/resnet18 is not), "
        "small-cnn a network of three convolutions",
    )
    epochs: int = Field(2, ge=1, le=1000)
    patience: int = Field(3, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images a step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW, at the start of the cosine")
    weight_decay: float = Field(0.01, ge=0)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    augment: Augment | None = Field(None, description="how training pictures are changed, each time anew")
    sizes: Sizes = Field((), description=DESCRIPTION)
    seed: int = Field(0, ge=0)
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none."""
        return ()

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data = labelled(splits, "train", "validation", "test")
        name = only_input(signature)
        recipe = self._recipe(signature)
        network = recipe.build()
        for size in ((recipe.height, recipe.width), *self.sizes):
            recipe.try_out(network, *size)
        signature = self._signed(signature)
        loop = _Loop(self, network, data, signature, out)
        loop.run()
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.architecture,
            parameters=sum(p.numel() for p in network.parameters()),
            best_epoch=loop.best_epoch,
            stopped_early=loop.stopped_early,
            history=tuple(loop.history),
            signature=signature,
        )
        check = finite_loss(*loop.outcome)
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        network.load_state_dict(loop.best_weights)

        def predict(inputs: Arrays) -> Arrays:
            return {self.output_name: source.predict(network, inputs[name])}

        example: Arrays = {name: data["test"].take(slice(0, source.EXAMPLES))[name].astype(np.float32)}
        golden = ask(
            predict,
            data["test"],
            seed=self.seed,
            sizes=at_other_sizes(data["test"], self.sizes, signature),
            trace=trace(network, [example[name][:1]]),
        )
        artifacts = keep_answers(golden, predict, data, signature, out)
        path = out.folder / "model.pt"
        source.save(path, recipe, network, example)
        artifacts["model"] = out.keep(path)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=artifacts)

    def _recipe(self, signature: Signature) -> Known:
        shape = signature.inputs[0].shape[1:]
        if len(shape) != 3 or signature.layout == "none":
            raise StageError(
                f"train.architecture: {self.architecture} takes pictures; the data has samples of shape {shape} and "
                f"layout {signature.layout}. Bring a network of your own (train.kind: torch-model)"
            )
        numbers = [int(n) for n in shape]
        channels, height, width = numbers if signature.layout == "NCHW" else (numbers[2], *numbers[:2])
        return Known(
            architecture=self.architecture,
            channels=channels,
            height=height,
            width=width,
            classes=len(signature.labels),
            layout=signature.layout,
        )

    def _signed(self, signature: Signature) -> Signature:
        """Return the signature of the trained model: it takes floats, whatever type the data has."""
        scores = TensorSpec(name=self.output_name, dtype="float32", shape=("batch", len(signature.labels)))
        inputs = tuple(spec.replace(dtype="float32") for spec in signature.inputs)
        signature = signature.replace(inputs=inputs, outputs=(scores,), answer=self.output_name)
        return with_dynamic_size(signature) if self.sizes else signature


class _Loop:
    """The loop, and the state that a restart needs. An epoch's order depends on the seed and its number alone."""

    def __init__(
        self,
        config: TorchTraining,
        network: "torch.nn.Module",
        data: dict[str, Split],
        signature: Signature,
        out: Workspace,
    ) -> None:
        import torch

        self.config, self.network, self.data, self.signature, self.out = config, network, data, signature, out
        self.name = signature.inputs[0].name
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, config.epochs * self.steps)
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
        self.history: list[Epoch] = []
        self.best_epoch = 0
        self.best_weights: dict[str, Any] = {}
        self.last_loss = 0.0
        self.checkpoint = out.folder / "checkpoint.pt"

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
            rate = float(self.schedule.get_last_lr()[0])
            epoch = Epoch(
                epoch=number,
                train_loss=train_loss,
                validation_loss=validation_loss,
                validation_accuracy=accuracy,
                learning_rate=rate,
            )
            self.history.append(epoch)
            finite = [e.validation_loss for e in self.history if np.isfinite(e.validation_loss)]
            if finite and validation_loss <= min(finite):
                self.best_epoch = number
                self.best_weights = self.network.state_dict()  # with the versions of its layers, which some need
                self.best_weights |= {name: tensor.clone() for name, tensor in self.best_weights.items()}
            self._save_checkpoint()
            self.out.progress(number, self.config.epochs, "epoch", **epoch.model_dump(exclude={"epoch"}))

    def _epoch(self, number: int) -> float:
        import torch

        split, size = self.data["train"], self.config.batch_size
        labels = labels_of(split)
        rng = np.random.default_rng([self.config.seed, number])
        order = rng.permutation(len(split))
        torch.manual_seed(int(np.random.SeedSequence([self.config.seed, number]).generate_state(1)[0]))  # of dropout
        self.network.train()
        total = 0.0
        for step in range(self.steps):
            chosen = order[step * size : (step + 1) * size]
            if len(chosen) == 1:  # batch normalisation has no variance of one image
                chosen = np.append(chosen, order[0])
            inputs = self._floats(split.take(chosen)[self.name], rng)
            loss = self.loss(self.network(inputs), torch.from_numpy(labels[chosen]))
            self.last_loss = float(loss.detach())
            if not np.isfinite(self.last_loss):
                return self.last_loss
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += self.last_loss
            self.out.progress((number - 1) * self.steps + step + 1, self.config.epochs * self.steps, "batch")
        return total / self.steps

    def _floats(self, inputs: npt.NDArray[np.generic], rng: np.random.Generator) -> "torch.Tensor":
        """Return training pictures as the network takes them."""
        if self.config.augment is not None:
            signature = self.signature
            inputs = self.config.augment.apply(
                inputs, rng, layout=signature.layout, preprocessing=signature.preprocessing
            )
        return source.tensor(inputs).float()

    def _validate(self) -> tuple[float, float]:
        import torch

        split = self.data["validation"]
        parts = [source.predict(self.network, inputs[self.name]) for inputs in batches(split, 64)]
        outputs, labels = np.concatenate(parts), labels_of(split)
        loss = float(self.loss(torch.from_numpy(outputs), torch.from_numpy(labels)))
        return loss, float(np.mean(outputs.argmax(1) == labels))

    def _save_checkpoint(self) -> None:
        import torch

        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "history": [epoch.model_dump() for epoch in self.history],
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
            "last_loss": self.last_loss,
        }
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        flush(temporary)
        temporary.replace(self.checkpoint)

    def _resume(self) -> None:
        import torch

        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.best_epoch, self.best_weights = state["best_epoch"], state["best_weights"]
        self.last_loss = state["last_loss"]

"""PyTorch training: AdamW, a cosine schedule, the best epoch kept, and a restart at the last whole epoch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from tasks.artifact import flush
from tasks.data.dataset import Split, read_split
from tasks.data.golden import Golden
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature, TensorSpec
from tasks.sources import torch as source
from tasks.train.facts import Epoch, TrainFacts, finite_loss
from tasks.workspace import Workspace

if TYPE_CHECKING:
    import torch

RANDOM_SAMPLES = 32


class TorchTraining(Frozen):
    """Train a PyTorch network from scratch."""

    kind: Literal["torch"] = "torch"
    architecture: source.Architecture = Field("resnet18", description="resnet18 is torchvision's, in its CIFAR form")
    epochs: int = Field(2, ge=1, le=1000)
    patience: int = Field(3, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images a step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW, at the start of the cosine")
    weight_decay: float = Field(0.01, ge=0)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    seed: int = Field(0, ge=0)
    output_name: str = Field("logits", min_length=1, description="name of the model's output")

    def fit(self, splits: dict[str, Path], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Train, keep the best epoch, and save the model with its answers. See `tasks.train.train`."""
        import torch

        torch.manual_seed(self.seed)
        data = {name: read_split(path) for name, path in splits.items() if name != "calibration"}
        classes = TensorSpec(name=self.output_name, dtype="float32", shape=("batch", len(signature.labels)))
        signature = signature.replace(outputs=(classes,))
        network = source.build(self.architecture, data["train"].inputs.shape[1], len(signature.labels))
        loop = _Loop(self, network, data, out)
        loop.run()
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.architecture,
            parameters=sum(p.numel() for p in network.parameters()),
            best_epoch=loop.best_epoch,
            stopped_early=loop.stopped_early,
            history=tuple(loop.history),
        )
        check = finite_loss(*loop.outcome)
        if not check.passed:
            return Report(stage="train", facts=facts, checks=(check,))
        network.load_state_dict(loop.best_weights)
        return Report(stage="train", facts=facts, checks=(check,), artifacts=_save(self, network, signature, data, out))


class _Loop:
    """The loop, and the state that a restart needs. An epoch's order depends on the seed and its number alone."""

    def __init__(
        self, config: TorchTraining, network: "torch.nn.Module", data: dict[str, Split], out: Workspace
    ) -> None:
        import torch

        self.config, self.network, self.data, self.out = config, network, data, out
        self.steps = -(-len(data["train"].labels) // config.batch_size)
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
                self.best_weights = {name: t.clone() for name, t in self.network.state_dict().items()}
            self._save_checkpoint()
            self.out.progress(number, self.config.epochs, "epoch", **epoch.model_dump(exclude={"epoch"}))

    def _epoch(self, number: int) -> float:
        import torch

        split, size = self.data["train"], self.config.batch_size
        order = np.random.default_rng([self.config.seed, number]).permutation(len(split.labels))
        self.network.train()
        total = 0.0
        for step in range(self.steps):
            chosen = order[step * size : (step + 1) * size]
            if len(chosen) == 1:  # batch normalisation has no variance of one image
                chosen = np.append(chosen, order[0])
            loss = self.loss(
                self.network(torch.from_numpy(split.inputs[chosen])), torch.from_numpy(split.labels[chosen])
            )
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

    def _validate(self) -> tuple[float, float]:
        import torch

        split = self.data["validation"]
        outputs = source.predict(self.network, split.inputs)
        loss = float(self.loss(torch.from_numpy(outputs), torch.from_numpy(split.labels)))
        return loss, float(np.mean(outputs.argmax(1) == split.labels))

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


def _save(
    config: TorchTraining, network: "torch.nn.Module", signature: Signature, data: dict[str, Split], out: Workspace
) -> dict[str, Any]:
    """Save the model, its golden answers and its predictions."""
    name = signature.inputs[0].name
    test = data["test"]
    noise = np.random.default_rng(config.seed).standard_normal((RANDOM_SAMPLES, *test.inputs.shape[1:]))
    random_inputs = noise.astype(np.float32)
    outputs = {split: source.predict(network, data[split].inputs) for split in data}
    golden = Golden(
        inputs={name: test.inputs},
        outputs={config.output_name: outputs["test"]},
        labels=test.labels,
        random_inputs={name: random_inputs},
        random_outputs={config.output_name: source.predict(network, random_inputs)},
        trace=source.trace(network, test.inputs[:1]),
    )
    files = {"model": "model.pt", "golden": "golden.npz", "predictions": "predictions.npz"}
    paths = {kind: out.folder / file for kind, file in files.items()}
    source.save(paths["model"], config.architecture, network, signature)
    golden.save(paths["golden"])
    labels = {f"{split}_labels": data[split].labels for split in data}
    np.savez(paths["predictions"], allow_pickle=False, **outputs, **labels)
    return {kind: out.keep(path) for kind, path in paths.items()}

"""PyTorch's training loop: AdamW, a cosine schedule, the best epoch kept, and a restart at the last whole epoch.

Training a network and fine-tuning one that was cut are the same loop on another network.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tasks.artifact import flush
from tasks.data.augment import Augment
from tasks.data.dataset import Arrays, Split, batches, labels_of
from tasks.frozen import Frozen
from tasks.report import Check
from tasks.signature import Signature
from tasks.sources import torch as source
from tasks.sources.learning import Epoch, finite_loss
from tasks.workspace import Workspace

if TYPE_CHECKING:
    import torch


class LoopConfig(Frozen):
    """How long and how fast a network learns."""

    epochs: int = Field(2, ge=1, le=1000)
    patience: int = Field(3, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images a step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW, at the start of the cosine")
    weight_decay: float = Field(0.01, ge=0)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    augment: Augment | None = Field(None, description="how training pictures are changed, each time anew")
    seed: int = Field(0, ge=0)


class Loop:
    """The loop, and the state that a restart needs. An epoch's order depends on the seed and its number alone.

    Args:
        config: how long and how fast.
        network: learns; `run` leaves its best weights in it.
        data: the splits `train` and `validation`, with labels.
        signature: tells the inputs in the order of the network's arguments, and which output has the scores.
        out: where progress is told and the checkpoint is kept.
    """

    def __init__(
        self,
        config: LoopConfig,
        network: "torch.nn.Module",
        data: Mapping[str, Split],
        signature: Signature,
        out: Workspace,
    ) -> None:
        import torch

        self.config, self.network, self.data, self.signature, self.out = config, network, data, signature, out
        self.answer = [spec.name for spec in signature.outputs].index(str(signature.answer))
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
        """Whether patience ended it, and not the number of epochs."""
        left = len(self.history) < self.config.epochs
        return left and len(self.history) - self.best_epoch >= self.config.patience

    def run(self, part: str) -> Check:
        """Learn, from the last checkpoint on, and leave the best weights in the network.

        Args:
            part: of the configuration, for the check's name.

        Returns:
            The check that the loss was a number; where it does not pass, there is no network worth keeping.
        """
        self._resume()
        while len(self.history) < self.config.epochs and not self.stopped_early:
            number = len(self.history) + 1
            train_loss = self._epoch(number)
            if not np.isfinite(train_loss):
                break
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
        check = finite_loss(*self._outcome(), part)
        if check.passed:
            self.network.load_state_dict(self.best_weights)
        return check

    def _outcome(self) -> tuple[float, str]:
        """Return the loss that decides whether there is a model, and where it was met."""
        if not np.isfinite(self.last_loss):
            return self.last_loss, f"epoch {len(self.history) + 1}, training images"
        if not self.best_epoch:  # batch statistics can keep the training loss finite while the model answers NaN
            return self.history[-1].validation_loss, f"epoch {len(self.history)}, validation images"
        return self.last_loss, f"epoch {len(self.history)}"

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
            inputs = [source.tensor(array) for array in self._changed(split.take(chosen), rng)]
            scores = [*source.outputs_of(self.network(*inputs)).values()][self.answer]
            loss = self.loss(scores, torch.from_numpy(labels[chosen]))
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

    def _changed(self, inputs: Arrays, rng: np.random.Generator) -> list[npt.NDArray[np.generic]]:
        """Return training samples as the network takes them; the pictures are those of its first input."""
        about, first = self.signature, self.signature.inputs[0].name
        if self.config.augment is not None:
            changed = self.config.augment.apply(
                inputs[first], rng, layout=about.layout, preprocessing=about.preprocessing
            )
            inputs = inputs | {first: changed}
        return source.in_order(inputs, about)

    def _validate(self) -> tuple[float, float]:
        import torch

        split = self.data["validation"]
        asked = (source.in_order(inputs, self.signature) for inputs in batches(split, 64))
        parts = [source.run(self.network, inputs)[self.answer] for inputs in asked]
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

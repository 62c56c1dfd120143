"""PyTorch's training loop: AdamW, a cosine schedule, the best epoch kept, and a restart at the last whole epoch.

Training a network and fine-tuning one that was cut are the same loop on another network.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import fsync
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split, batches, require_labels
from gauntlet.frameworks.torch import network as source
from gauntlet.frameworks.training import LearningConfig, TrainingLoop, shuffled
from gauntlet.images.augmentation import Augmentation

if TYPE_CHECKING:
    import torch


class TorchLoopConfig(LearningConfig):
    """How long and how fast a network learns."""

    augment: Augmentation | None = Field(None, description="how training pictures are changed, each time anew")


class TorchTrainingLoop(TrainingLoop):
    """The loop, and the state that a restart needs.

    Args:
        config: how long and how fast.
        network: learns; `run` leaves its best weights in it.
        data: the splits `train` and `validation`, with labels.
        signature: tells the inputs in the order of the network's arguments, and which output has the scores.
        out: where progress is told and the checkpoint is kept.
    """

    def __init__(
        self,
        config: TorchLoopConfig,
        network: "torch.nn.Module",
        data: Mapping[str, Split],
        signature: Signature,
        workspace: Workspace,
    ) -> None:
        import torch

        super().__init__(config, workspace)
        self.config, self.network, self.data, self.signature = config, network, data, signature
        self.answer = [spec.name for spec in signature.outputs].index(str(signature.primary_output))
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, config.epochs * self.steps)
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
        self.best_weights: dict[str, Any] = {}
        self.checkpoint = workspace.folder / "checkpoint.pt"

    def run(self, part: str = "train") -> Check:
        """Learn as every loop does, and leave the best weights in the network."""
        check = super().run(part)
        if check.passed:
            self.network.load_state_dict(self.best_weights)
        return check

    def _epoch(self, number: int) -> float:
        import torch

        split = self.data["train"]
        labels = require_labels(split)
        rng = np.random.default_rng([self.config.seed, number])
        torch.manual_seed(int(np.random.SeedSequence([self.config.seed, number]).generate_state(1)[0]))  # of dropout
        self.network.train()
        total = 0.0
        for step, chosen in enumerate(shuffled(len(split), self.config.batch_size, rng), 1):
            inputs = [source.tensor(array) for array in self._changed(split.take(chosen), rng)]
            scores = [*source.named_outputs(self.network(*inputs)).values()][self.answer]
            loss = self.loss(scores, torch.from_numpy(labels[chosen]))
            self.history.last_loss = float(loss.detach())
            if not np.isfinite(self.history.last_loss):
                return self.history.last_loss
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += self.history.last_loss
            self.out.progress((number - 1) * self.steps + step, self.config.epochs * self.steps, "batch")
        return total / self.steps

    def _changed(self, inputs: NamedArrays, rng: np.random.Generator) -> list[npt.NDArray[np.generic]]:
        """Return training samples as the network takes them; the pictures are those of its first input."""
        about, first = self.signature, self.signature.inputs[0].name
        if self.config.augment is not None:
            changed = self.config.augment.apply(
                inputs[first], rng, layout=about.layout, preprocessing=about.preprocessing
            )
            inputs = inputs | {first: changed}
        return source.ordered_inputs(inputs, about)

    def _validate(self) -> tuple[float, float]:
        import torch

        split = self.data["validation"]
        asked = (source.ordered_inputs(inputs, self.signature) for inputs in batches(split, 64))
        parts = [source.run_network(self.network, inputs)[self.answer] for inputs in asked]
        outputs, labels = np.concatenate(parts), require_labels(split)
        loss = float(self.loss(torch.from_numpy(outputs), torch.from_numpy(labels)))
        return loss, float(np.mean(outputs.argmax(1) == labels))

    def _rate(self, number: int) -> float:
        return float(self.schedule.get_last_lr()[0])

    def _save(self, *, best: bool) -> None:
        import torch

        if best:
            self.best_weights = self.network.state_dict()  # with the versions of its layers, which some need
            self.best_weights |= {name: tensor.clone() for name, tensor in self.best_weights.items()}
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "history": self.history.dump(),
            "best_weights": self.best_weights,
        }
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        fsync(temporary)
        temporary.replace(self.checkpoint)

    def _resume(self) -> None:
        import torch

        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.history.restore(state["history"])
        self.best_weights = state["best_weights"]

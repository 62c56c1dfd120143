"""PyTorch's training loop: AdamW, a cosine schedule, the best epoch kept; for training and for fine-tuning."""

import ctypes
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from frameworks.augmentation import Augmentation
from frameworks.epochs import LABEL_SMOOTHING, ClassifierLoop, TrainingLoop, shuffled
from frameworks.torch.network import named_outputs, ordered_inputs, require_whole, run_network, tensor
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split, Splits, require_labels
from gauntlet.frameworks.training import Device, LoopConfig

if TYPE_CHECKING:
    import torch


class WarmupConfig(LoopConfig):
    """Hyperparameters of a training whose learning rate may rise before it falls."""

    warmup: float = Field(0.0, ge=0, lt=1, description="share of all steps in which the learning rate rises")


class TorchLoopConfig(WarmupConfig):
    """Hyperparameters of a PyTorch training."""

    augment: Augmentation | None = Field(None, description="random changes to the training images")

    def loop(self) -> "TorchLoopConfig":
        """Return the hyperparameters alone."""
        return TorchLoopConfig(**{name: getattr(self, name) for name in TorchLoopConfig.model_fields})


class TorchLoop(TrainingLoop):
    """Trains a network on the splits `train` and `validation`; `run` leaves the best weights in the network.

    It trains on the configured device, and leaves the network on the CPU. `frozen` are the modules that
    `frameworks.torch.freezing.freeze` returned.
    """

    checkpoint_name = "checkpoint.pt"

    def __init__(
        self,
        config: WarmupConfig,
        network: "torch.nn.Module",
        data: Splits,
        workspace: Workspace,
        frozen: Sequence["torch.nn.Module"] = (),
    ) -> None:
        import torch

        super().__init__(config, data, workspace)
        self.device = training_device(config.device)
        self.network = network.to(self.device)
        self.frozen = frozen
        rate, decay = config.learning_rate, config.weight_decay
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=decay, fused=True)
        self.schedule = self._schedule(config)
        self.best_weights: dict[str, Any] = {}

    def _schedule(self, config: WarmupConfig) -> "torch.optim.lr_scheduler.LRScheduler":
        """Return the learning rate's course over all steps: a linear warmup, and half a period of a cosine."""
        from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

        total = config.epochs * self.steps
        first = round(config.warmup * total)
        if not first:
            return CosineAnnealingLR(self.optimizer, total)
        rising = LinearLR(self.optimizer, 1 / (first + 1), 1.0, first)
        return SequentialLR(self.optimizer, [rising, CosineAnnealingLR(self.optimizer, total - first)], [first])

    def run(self, part: str = "train") -> Check:
        """Train as `TrainingLoop.run`, and leave the best weights in the network."""
        with float32_kernels(), freed_memory_kept():
            check = super().run(part)
        if check.passed:
            self.network.load_state_dict(self.best_weights)
        self.network.to("cpu")
        return check

    @property
    def validated(self) -> "torch.nn.Module":
        """The network whose loss on the validation images decides, and whose weights are kept."""
        return self.network

    def _losses(self, number: int) -> Iterator[float]:
        import torch

        split = self.data["train"]
        rng = np.random.default_rng([self.history.config.seed, number])
        state = np.random.SeedSequence([self.history.config.seed, number]).generate_state(1)
        torch.manual_seed(int(state[0]))  # of dropout
        self.network.train()
        for module in self.frozen:  # batch normalization would update its statistics
            module.eval()
        for chosen in shuffled(len(split), self.history.config.batch_size, rng):
            loss = self._loss(split, chosen, rng)
            yield float(loss.detach())
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self._step()

    def _step(self) -> None:
        self.optimizer.step()
        self.schedule.step()

    @abstractmethod
    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        """Return the mean loss of some training samples."""

    def _rate(self, number: int) -> float:
        return float(self.schedule.get_last_lr()[0])

    def _state(self) -> dict[str, Any]:
        """Return all parts that a checkpoint holds besides the history and the best weights."""
        return {"network": self.network, "optimizer": self.optimizer, "schedule": self.schedule}

    def _save(self, path: Path, *, best: bool) -> None:
        import torch

        if best:
            self.best_weights = self.validated.state_dict()  # with the versions of its layers, which some need
            self.best_weights |= {name: tensor.clone() for name, tensor in self.best_weights.items()}
        state = {name: part.state_dict() for name, part in self._state().items()}
        torch.save(state | {"history": self.history.dump(), "best_weights": self.best_weights}, path)

    def _resume(self) -> None:
        import torch

        require_whole(self.checkpoint)
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)  # which may be of a GPU
        for name, part in self._state().items():
            part.load_state_dict(state[name])
        self.history.restore(state["history"])
        self.best_weights = state["best_weights"]


class TorchTrainingLoop(TorchLoop, ClassifierLoop):
    """Trains a classifier.

    The signature gives the order of the network's arguments, and which output has the scores.
    """

    def __init__(
        self,
        config: TorchLoopConfig,
        network: "torch.nn.Module",
        data: Splits,
        signature: Signature,
        workspace: Workspace,
        frozen: Sequence["torch.nn.Module"] = (),
    ) -> None:
        import torch

        super().__init__(config, network, data, workspace, frozen)
        self.config, self.signature = config, signature
        self.scores_index = [spec.name for spec in signature.outputs].index(str(signature.primary_output))
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
        self.right: list[torch.Tensor] = []  # which training images of this epoch were predicted right, by step

    def _loss(self, split: Split, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> "torch.Tensor":
        import torch

        inputs = [tensor(array).to(self.device) for array in self._augmented(split.take(chosen), rng)]
        scores = [*named_outputs(self.network(*inputs)).values()][self.scores_index]
        labels = torch.from_numpy(require_labels(split)[chosen]).to(self.device)
        self.right.append(scores.detach().argmax(1) == labels)
        loss: torch.Tensor = self.loss(scores, labels)
        return loss

    def _train_accuracy(self) -> float:
        import torch

        right, self.right = torch.cat(self.right), []
        return float(right.float().mean())

    def _augmented(self, inputs: NamedArrays, rng: np.random.Generator) -> list[Array]:
        """Return training samples in the order of the network's arguments, with its first input augmented."""
        first, layout, how = self.signature.inputs[0].name, self.signature.layout, self.signature.preprocessing
        if self.config.augment is not None:
            inputs = inputs | {first: self.config.augment.apply(inputs[first], rng, layout=layout, preprocessing=how)}
        return ordered_inputs(inputs, self.signature)

    def _scores(self, inputs: NamedArrays) -> Array:
        return run_network(self.network, ordered_inputs(inputs, self.signature))[self.scores_index]

    def _validation_loss(self, scores: Array, labels: npt.NDArray[np.int64]) -> float:
        import torch

        return float(self.loss(torch.from_numpy(scores), torch.from_numpy(labels)))


TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt(3)."""
KEPT = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**27}
"""In bytes. Blocks above 32 MB, the most that glibc allows, are returned all the same."""
USUAL = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26, TOP_PAD: 2**17}
"""The bytes up to which glibc raises its thresholds by itself."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Have the C library keep freed memory inside, and return it to the kernel at the end.

    By default glibc returns what is free above 64 MB, so each step asks the kernel for its activations and gradients
    anew, page by page. No effect where the C library is another one.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    for parameter, size in KEPT.items():
        library.mallopt(parameter, size)
    try:
        yield
    finally:
        for parameter, size in USUAL.items():
            library.mallopt(parameter, size)
        library.malloc_trim(0)


def training_device(choice: Device) -> "torch.device":
    """Return the device to train on; raise StageError if `cuda` is asked for and PyTorch finds no GPU."""
    import torch

    has_gpu = choice != "cpu" and torch.cuda.is_available()
    if choice == "cuda" and not has_gpu:
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        raise StageError(
            f"device: cuda, but PyTorch {torch.__version__}, which {built}, finds no GPU here. "
            "Fix: set device to auto or cpu, or check the driver with nvidia-smi"
        )
    return torch.device("cuda" if has_gpu else "cpu")


@contextmanager
def float32_kernels() -> Iterator[None]:
    """Have cuDNN compute in float32, not TF32, and with the same kernels in each run; no effect on a CPU."""
    import torch

    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield

"""What every kind of `train` has: a model that is trained, or loaded as it was brought."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Kind
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import LoopConfig
from gauntlet.onnx_model.recognition import Operators
from tasks.train.facts import TrainFacts


class Training(Kind, ABC):
    """A kind of `train`."""

    exporters: ClassVar[tuple[str, ...]] = ()
    """Kinds of the exporters that can read what it makes, the default first; by default, all of the framework's."""
    from_scratch: ClassVar[bool] = False
    prunable: ClassVar[bool] = False
    finds_prediction: ClassVar[bool] = False
    """Whether it finds the output with the prediction by the classes that the model names."""

    @property
    def learns(self) -> bool:
        """Whether the model is trained on the data, from its first weights or further."""
        return self.from_scratch

    @property
    def operators(self) -> Operators:
        """Which operators dominate the model, as far as the configuration shows it."""
        return "unknown"

    @property
    def hyperparameters(self) -> LoopConfig | None:
        """Those of the training on the data, by which a pruned network is fine-tuned; None where nothing is trained."""
        return None

    @classmethod
    def values(cls, source: str, parameters: Path | None, *, trust: bool) -> dict[str, Any]:
        """Return the part `train` of the run of a brought model; `parameters` are for those that do not hold their own.

        Raises:
            ConfigError: where the parameters do not fit.
        """
        if parameters is not None:
            raise ConfigError(f"--parameters is for a JAX function, FILE.py:FUNCTION; {source} holds its own")
        allowed = {"trust": True} if trust and "trust" in cls.model_fields else {}
        return {"kind": cls.model_fields["kind"].default, "model": str(Path(source).resolve())} | allowed

    @classmethod
    def title(cls, source: str) -> str:
        """Return what to call the run of a brought model."""
        path = Path(source)
        return path.resolve().name if path.is_dir() else path.stem

    @abstractmethod
    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Train or load the model, and record its golden outputs. See `tasks.train.train`."""


class Brought(Training):
    """A kind of `train` for `gauntlet run MODEL`: it needs no code of the user's but a function that is named."""

    @classmethod
    def as_taken(cls, samples: NamedArrays, layout: str) -> NamedArrays:
        """Return samples in the layout that the model takes."""
        return samples

    @abstractmethod
    def load_model(self, store: Store) -> Any:
        """Return the model, a `frameworks.session.LoadedModel`.

        Raise StageError if it cannot be read, or is neither trusted nor in the store.
        """

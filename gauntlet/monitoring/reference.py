"""What a model saw and said when it was evaluated: `monitoring.npz` in its bundle."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.bundle.bundle import ZIP_ERRORS, Bundle
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Signature
from gauntlet.datasets.truth import class_indices
from gauntlet.monitoring.features import PREDICTED, feature_names, input_statistics, output_features
from gauntlet.problems.base import Floats

REFERENCE = "monitoring.npz"


@dataclass(frozen=True)
class MonitoringReference:
    """The features of evaluation samples, and which of them the model predicted right."""

    names: tuple[str, ...]
    features: Floats
    """Shape (samples, features)."""
    wrong: npt.NDArray[np.bool_] | None
    """Shape (samples,); None where the samples have no classes as labels."""

    @property
    def error(self) -> float | None:
        """The share of wrong predictions."""
        return None if self.wrong is None else float(self.wrong.mean())

    @classmethod
    def measure(
        cls, signature: Signature, calls: Iterable[tuple[NamedArrays, NamedArrays]], labels: Array | None
    ) -> "MonitoringReference":
        """Return the reference from inputs and outputs, each of shape (n, ...), and the labels of all samples."""
        parts = [
            np.concatenate([input_statistics(inputs, signature), output_features(outputs, signature)], axis=1)
            for inputs, outputs in calls
        ]
        names, features, truth = feature_names(signature), np.concatenate(parts), class_indices(labels)
        known = PREDICTED in names and truth is not None
        return cls(names, features, features[:, names.index(PREDICTED)] != truth if known else None)

    def save(self, path: Path) -> None:
        """Write one `.npz` file."""
        wrong = {} if self.wrong is None else {"wrong": self.wrong}
        np.savez(path, allow_pickle=False, names=np.array(self.names), features=self.features, **wrong)

    @classmethod
    def load(cls, bundle: Bundle) -> "MonitoringReference":
        """Read a bundle's reference; `ConfigError` when it has none, or a damaged one."""
        path = bundle.folder / REFERENCE
        if not path.is_file():
            raise ConfigError(
                f"{bundle.contract.name} ({bundle.digest[:12]}): the bundle has no {REFERENCE} to compare with. "
                "Fix: make the bundle again with package.reference_samples of at least 50"
            )
        try:
            with np.load(path, allow_pickle=False) as file:
                names = tuple(file["names"].tolist())
                return cls(names, file["features"], file["wrong"] if "wrong" in file.files else None)
        except (*ZIP_ERRORS, KeyError) as error:
            raise ConfigError(f"{path}: it cannot be read: {error}. Fix: copy the bundle again") from error

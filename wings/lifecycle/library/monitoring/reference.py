"""What a model saw and said when it was evaluated: `monitoring.npz` in its bundle."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.bundle.bundle import Bundle, open_arrays
from gauntlet.bundle.contract import Contract
from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import NPZ_ERRORS, Split
from gauntlet.datasets.truth import class_indices
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.request_log.input_statistics import input_statistics
from gauntlet.request_log.log_format import EMBEDDING, REFERENCE
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import Engine
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, NoEmbedding, open_embedding_session
from wings.lifecycle.library.monitoring.embedding_search import find_embedding
from wings.lifecycle.library.monitoring.embeddings import DISTANCE, EmbeddingReference
from wings.lifecycle.library.monitoring.features import PREDICTED, feature_names, output_features

REFERENCE_CHUNK, PROVING_SAMPLES = 256, 32
"""Samples that are in memory at once, and those that prove a session with embeddings."""
UNKNOWN = "its reference has no embeddings. Fix: make the bundle again"


@dataclass(frozen=True)
class MonitoringReference:
    """The features of evaluation samples, and which of them the model predicted right."""

    names: tuple[str, ...]
    features: Floats
    """Shape (samples, features)."""
    wrong: npt.NDArray[np.bool_] | None
    """Shape (samples,); None where the samples have no classes as labels."""
    embedding: EmbeddingReference | None = None
    no_embedding: str = UNKNOWN
    """Why there is no `embedding`."""

    @property
    def watched(self) -> tuple[str, ...]:
        """The names of all features that are tested: `names`, and the distance of embeddings where they are known."""
        return (*self.names, *((DISTANCE,) if self.embedding else ()))

    def usual(self, feature: int) -> Floats:
        """Return what a feature in `watched` is compared with, shape (k,); NaN is the smallest, as in a history."""
        if feature < len(self.names):
            return np.nan_to_num(self.features[:, feature], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        assert self.embedding is not None
        return self.embedding.usual

    @property
    def error(self) -> float | None:
        """The share of wrong predictions."""
        return None if self.wrong is None else float(self.wrong.mean())

    @classmethod
    def measure(
        cls,
        signature: Signature,
        calls: Iterable[tuple[NamedArrays, NamedArrays]],
        labels: Array | None,
        embedded: EmbeddingOutput | str = UNKNOWN,
    ) -> "MonitoringReference":
        """Return the reference from inputs and outputs, each of shape (n, ...), and the labels of all samples.

        `embedded` says where the embedding is that the outputs have as `EMBEDDING`, or why there is none.
        """
        parts, embeddings = list[Floats](), list[Array]()
        for inputs, outputs in calls:
            parts.append(
                np.concatenate([input_statistics(inputs, signature), output_features(outputs, signature)], axis=1)
            )
            embeddings += [outputs[EMBEDDING]] if isinstance(embedded, EmbeddingOutput) else []
        names, features, truth = feature_names(signature), np.concatenate(parts), class_indices(labels)
        known = PREDICTED in names and truth is not None
        wrong = features[:, names.index(PREDICTED)] != truth if known else None
        if isinstance(embedded, str):
            return cls(names, features, wrong, no_embedding=embedded)
        try:
            measured = EmbeddingReference.measure(embedded, np.concatenate(embeddings))
        except NoEmbedding as error:
            return cls(names, features, wrong, no_embedding=str(error))
        return cls(names, features, wrong, measured, "")

    def save(self, path: Path) -> None:
        """Write one `.npz` file."""
        wrong = {} if self.wrong is None else {"wrong": self.wrong}
        embedding = self.embedding.arrays() if self.embedding else {"no_embedding": np.array(self.no_embedding)}
        named = {"names": np.array(self.names), "features": self.features, **wrong, **embedding}
        np.savez(path, allow_pickle=False, **named)

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
            with open_arrays(path) as file:
                arrays = dict(file)
            embedding = EmbeddingReference.load(arrays) if "embedding/output" in arrays else None
            absent = "" if embedding else str(arrays.get("no_embedding", UNKNOWN))
            return cls(tuple(arrays["names"].tolist()), arrays["features"], arrays.get("wrong"), embedding, absent)
        except NPZ_ERRORS as error:
            raise ConfigError(f"{path}: it cannot be read: {error}. Fix: copy the bundle again") from error


def logged_embedding(bundle: Bundle) -> EmbeddingOutput | str:
    """Return where the embedding is that requests are compared with, or why there is none; see `load`."""
    reference = MonitoringReference.load(bundle)
    return reference.embedding.output if reference.embedding else reference.no_embedding


def save_reference(contract: Contract, plain: Any, model: Path, test: Split, most: int, target: Path) -> None:
    """Save what requests are compared with: features of the winner's inputs and outputs, and which are wrong.

    `plain` is the session of the winner's file `model`; of the evaluation's samples `test`, at most `most` are taken.
    """
    chosen = np.unique(np.linspace(0, len(test) - 1, min(len(test), most)).astype(np.int64))
    session, embedded = _reference_session(contract, plain, model, test.take(chosen[:PROVING_SAMPLES]))

    def calls() -> Iterator[tuple[NamedArrays, NamedArrays]]:
        for start in range(0, len(chosen), REFERENCE_CHUNK):
            inputs = test.take(chosen[start : start + REFERENCE_CHUNK])
            yield inputs, batched_inference(session, inputs).run(contract.best_batch)

    labels = None if test.labels is None else test.labels[chosen]
    MonitoringReference.measure(contract.signature, calls(), labels, embedded).save(target)


def _reference_session(
    contract: Contract, plain: Any, model: Path, samples: NamedArrays
) -> tuple[Any, EmbeddingOutput | str]:
    """Return a session that also has the embedding, and where it is; the plain one, and why, where there is none."""
    if isinstance(plain, Engine):
        return plain, f"{contract.target} gives none"
    try:
        embedding = find_embedding(
            read_graph(model), contract.signature.primary_output or contract.signature.outputs[0].name
        )
        batches, overrides = [contract.best_batch], contract.session
        return open_embedding_session(model, embedding, plain, samples, batches, overrides=overrides), embedding
    except NoEmbedding as error:
        return plain, str(error)

"""How far a sample's penultimate outputs are from those of the evaluation: the score that a monitor tests.

The distance is Mahalanobis' (On the generalised distance in statistics, 1936; of a network's features: Lee et al., A
simple unified framework for detecting out-of-distribution samples and adversarial attacks, NeurIPS 2018, without their
classes): from the mean, in units of the covariance. Mean and covariance are of one random half of the evaluation;
the distances that requests are compared with are of the other half. So these and the requests are exchangeable
while nothing changes, and the conformal test holds exactly, however few samples there are.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from gauntlet.core.arrays import Array, Floats, NamedArrays
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, NoEmbedding

DISTANCE = "embedding distance"
"""Name of the feature."""
RIDGE = 1e-3
"""Of the mean variance, added to each direction: some may not vary at all."""
MIN_SAMPLES = 20
"""With finite embeddings; fewer say nothing about a covariance."""


@dataclass(frozen=True)
class EmbeddingReference:
    """Where a model's embedding is, what is usual for it, and how far usual samples are from that."""

    output: EmbeddingOutput
    mean: Floats
    """Shape (k,)."""
    whitening: Floats
    """Shape (k, k): multiplied by it, a deviation from the mean has unit covariance."""
    usual: Floats
    """Distances of samples that mean and whitening were not computed from."""

    @classmethod
    def measure(cls, output: EmbeddingOutput, embeddings: Array) -> Self:
        """Return the reference from the embeddings of the evaluation's samples, shape (n, k).

        Raises:
            NoEmbedding: when there are too few of them.
        """
        finite = embeddings[np.isfinite(embeddings).all(axis=1)]
        if len(finite) < MIN_SAMPLES:
            raise NoEmbedding(f"{len(finite)} samples have a finite embedding; it takes {MIN_SAMPLES}")
        shuffled = finite[np.random.default_rng(0).permutation(len(finite))]  # the evaluation may be sorted by class
        fitted, others = shuffled[::2].astype(np.float64), shuffled[1::2]
        mean = fitted.mean(axis=0)
        covariance = np.atleast_2d(np.cov(fitted, rowvar=False))
        ridge = RIDGE * np.trace(covariance) / len(covariance) or 1.0  # where nothing varies at all
        inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
        made = cls(output, mean, np.asarray(np.linalg.cholesky(inverse), np.float64), np.empty(0))
        return cls(output, mean, made.whitening, made.distances(others))

    def distances(self, embeddings: Array) -> Floats:
        """Return the distance of each sample, shape (n,); infinite for one that is not finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            deviations = (embeddings.astype(np.float64) - self.mean) @ self.whitening
            return np.asarray(np.nan_to_num(np.sqrt((deviations**2).sum(axis=1)), nan=np.inf, posinf=np.inf))

    def arrays(self) -> NamedArrays:
        """Return what `load` takes."""
        described = np.array(self.output.model_dump_json())
        return {
            "embedding/output": described,
            "embedding/mean": self.mean,
            "embedding/whitening": self.whitening,
            "embedding/usual": self.usual,
        }

    @classmethod
    def load(cls, arrays: NamedArrays) -> Self:
        """Return the reference from arrays; `KeyError` or `ValueError` when they are not those of `arrays`."""
        output = EmbeddingOutput.model_validate_json(str(arrays["embedding/output"]))
        mean, whitening, usual = (
            arrays[f"embedding/{name}"].astype(np.float64) for name in ("mean", "whitening", "usual")
        )
        return cls(output, mean, whitening, usual)

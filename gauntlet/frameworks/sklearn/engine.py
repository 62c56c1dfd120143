"""scikit-learn in a worker: the estimator as it was fitted, called as its users call it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.frameworks.sklearn import estimator as source
from gauntlet.runtime.engines.base import Engine, TensorInfo, type_name

TRAINED_HERE = (
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.model_selection._split.StratifiedKFold",
)
"""What `train.kind: sklearn` leaves and skops does not know: plain Python, which reads no memory of its own."""


class SklearnEngine(Engine):
    """A fitted estimator."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        os.environ["LOKY_MAX_CPU_COUNT"] = str(threads)  # what `n_jobs=-1` stands for
        import sklearn
        from threadpoolctl import threadpool_limits

        self.runtime = f"scikit-learn {sklearn.__version__}"
        self.estimator = source.load(model, (*TRAINED_HERE, *options["trusted"]))
        self.limits = threadpool_limits(threads)  # of OpenMP and the linear algebra, which are loaded by now
        *self.asked_beside, self.asked = source.estimator_outputs(self.estimator)
        asked = (*self.asked_beside, self.asked)
        self.outputs = [TensorInfo(each.output, type_name("float32"), ["batch"]) for each in asked]

    def set_samples(self, samples: NamedArrays) -> None:
        """Take the inputs from the samples: an estimator says nothing of them."""
        self.inputs = [TensorInfo(n, type_name(a.dtype.name), ["batch", *a.shape[1:]]) for n, a in samples.items()]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Time the one method that tells most; a label beside it, which users read off it, is not timed."""
        given, method = source.samples(feed), getattr(self.estimator, self.asked.method)

        def arrays(answer: Any) -> list[Array]:
            beside = [each.ask(self.estimator, given) for each in self.asked_beside]
            return [*beside, self.asked.shaped(answer)]

        return lambda: method(given), arrays

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the steps; scikit-learn knows the processor alone."""
        steps = getattr(self.estimator, "steps", None) or [("model", self.estimator)]
        return {"asked": "cpu", "nodes": {"cpu": [[name, type(step).__name__] for name, step in steps]}}


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> SklearnEngine:
    """Load a model; `options` are those of the target."""
    return SklearnEngine(model, threads, options)

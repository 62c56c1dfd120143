"""Engine for scikit-learn: the fitted estimator as its users call it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frameworks.session import type_name
from frameworks.sklearn.estimator import estimator_inputs, estimator_outputs, load
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.runtime.engines.base import Engine, TensorInfo

TRAINED_HERE = (
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.model_selection._split.StratifiedKFold",
)
"""Types in a model of `train.kind: sklearn` that skops does not know: plain Python, without raw memory access."""


class SklearnEngine(Engine):
    """A fitted estimator; `options` are those of the target."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        os.environ["LOKY_MAX_CPU_COUNT"] = str(threads)  # the meaning of `n_jobs=-1`
        import sklearn
        from threadpoolctl import threadpool_limits

        self.runtime = f"scikit-learn {sklearn.__version__}"
        self.estimator = load(model, None if options.get("trust") else TRAINED_HERE)
        self.limits = threadpool_limits(threads)  # of OpenMP and BLAS, which are loaded by now
        *self.untimed, self.timed = estimator_outputs(self.estimator)
        names = [each.output for each in (*self.untimed, self.timed)]
        self.outputs = [TensorInfo(name, type_name("float32"), ["batch"]) for name in names]

    def set_samples(self, samples: NamedArrays) -> None:
        """Take the inputs from the samples: an estimator does not describe them."""
        self.inputs = [TensorInfo(n, type_name(a.dtype.name), ["batch", *a.shape[1:]]) for n, a in samples.items()]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Time the most informative method only; users derive the label from its result."""
        inputs, method = estimator_inputs(self.estimator, feed), getattr(self.estimator, self.timed.method)

        def arrays(result: Any) -> list[Array]:
            return [*(each.compute(self.estimator, inputs) for each in self.untimed), self.timed.convert(result)]

        return lambda: method(inputs), arrays

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the steps; scikit-learn runs only on the CPU."""
        steps = getattr(self.estimator, "steps", None) or [("model", self.estimator)]
        return {"asked": "cpu", "nodes": {"cpu": [[name, type(step).__name__] for name, step in steps]}}


load_engine = SklearnEngine

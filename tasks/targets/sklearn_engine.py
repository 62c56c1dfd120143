"""scikit-learn in a worker: the estimator as it was fitted, called as its users call it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.runtime.engines import Array, Engine, Feed, Port, type_name
from tasks.sources import sklearn as source

TRAINED_HERE = (
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.model_selection._split.StratifiedKFold",
)
"""What `train.kind: sklearn` leaves and skops does not know: plain Python, which reads no memory of its own."""


def unavailable(options: dict[str, Any]) -> str | None:
    """Return None: that the packages are there is known."""
    return None


class Loaded(Engine):
    """A fitted estimator."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        os.environ["LOKY_MAX_CPU_COUNT"] = str(threads)  # what `n_jobs=-1` stands for
        import sklearn
        from threadpoolctl import threadpool_limits

        self.runtime = f"scikit-learn {sklearn.__version__}"
        self.estimator = source.load(model, (*TRAINED_HERE, *options["trusted"]))
        self.limits = threadpool_limits(threads)  # of OpenMP and the linear algebra, which are loaded by now
        *self.asked_beside, self.asked = source.questions(self.estimator)

    def given(self, samples: Feed) -> None:
        """Take the inputs from the samples: an estimator says nothing of them."""
        self.inputs = [Port(n, type_name(a.dtype.name), ["batch", *a.shape[1:]]) for n, a in samples.items()]

    def get_inputs(self) -> Sequence[Port]:
        """Return the samples' names and types."""
        return self.inputs

    def get_outputs(self) -> Sequence[Port]:
        """Return the outputs of the ONNX form."""
        return [Port(each.output, type_name("float32"), ["batch"]) for each in (*self.asked_beside, self.asked)]

    def bound(self, feed: Feed) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Time the one method that tells most; a label beside it, which users read off it, is not timed."""
        given, method = source.samples(feed), getattr(self.estimator, self.asked.method)

        def arrays(answer: Any) -> list[Array]:
            beside = [each.ask(self.estimator, given) for each in self.asked_beside]
            return [*beside, self.asked.shaped(answer)]

        return lambda: method(given), arrays

    def placement(self, feed: Feed) -> dict[str, Any]:
        """Return the steps; scikit-learn knows the processor alone."""
        steps = getattr(self.estimator, "steps", None) or [("model", self.estimator)]
        return {"asked": "cpu", "nodes": {"cpu": [[name, type(step).__name__] for name, step in steps]}}

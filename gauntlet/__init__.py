"""Everything of onnx-gauntlet that is public in Python.

The functions have the words, the defaults and the errors of the commands. What they call is found by its entry point
`function.NAME`, as the commands are: this package is the library below the pipeline, and imports nothing above it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gauntlet.core.errors import ConfigError, GateFailed, PipelineError, StageError

if TYPE_CHECKING:
    from gauntlet.bundle.predictor import Predictor
    from wings.python_api.run_result import RunResult

__all__ = [
    "ConfigError",
    "GateFailed",
    "PipelineError",
    "StageError",
    "bench",
    "diagnose",
    "load",
    "quantize",
    "run",
    "show",
]

# ONNX Runtime's wheels report sessions, errors and a device id to their vendor, on Linux too since 1.31. It reads this
# when it is imported. What the user set stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def run(
    model: Any,
    data: Any = None,
    *,
    sample: Any = None,
    home: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> "RunResult":
    """Run a model through the gauntlet, as `gauntlet run` does, and return the winner with its evidence.

    ```python
    result = gauntlet.run("model.onnx", samples, set={"quantize": [{"kind": "static"}], "benchmark.rounds": 6})
    print(result.winner, result.table, result.report)
    result.save("winner.zip")
    ```

    Args:
        model: a file, a preset or a configuration, as for the command; an `onnx.ModelProto`; or a PyTorch module, a
            Keras model or a fitted scikit-learn estimator, which is saved in the home as its framework saves it.
        data: samples: a folder of images, an `.npz` file, an array of shape (n, ...), a dictionary of arrays by input,
            a DataFrame, a pair of these and labels, or batches of them from a `DataLoader` or a generator. By default,
            random ones.
        sample: inputs from which PyTorch learns the shapes of a module: a tensor, a tuple, or a dictionary by argument.
            By default, some of `data`.
        home: the folder of all runs, by default `$GAUNTLET_HOME` or `.gauntlet`.
        quiet: print no progress.
        options: those of the command by name, for example `labels="names.txt"`, `shape={"input": (3, 224, 224)}`,
            `set={"benchmark.rounds": 8}`.

    Raises:
        ConfigError: for wrong arguments, or an extra that is not installed.
        GateFailed: when a gate of the main line failed. `gauntlet.show()` has the report.
        StageError: when a stage could not do its work.
    """
    result: RunResult = _function("run")(model, data, sample=sample, home=home, quiet=quiet, **options)
    return result


def quantize(model: Any, data: Any = None, **options: Any) -> "RunResult":
    """Return a model's smallest quantized file that stays accurate and is not proven slower, by a run.

    ```python
    small = gauntlet.quantize("model.onnx", samples, set={"budget.max_size_mb": 0.1, "benchmark.rounds": 6})
    print(small.winner.path, small.table)
    ```

    A slower file wins only where a limit such as `budget.max_size_mb` leaves no other.

    Args:
        model: as for `run`.
        data: samples, as for `run`; real ones, because they calibrate.
        options: what `run` takes; `set={"select.objective": "latency"}` wants the fastest file.

    Raises:
        GateFailed: also when no quantized file wins.
    """
    result: RunResult = _function("quantize")(model, data, **options)
    return result


def show(run: str | None = None, *, home: str | Path | None = None) -> "RunResult":
    """Return a finished run, by the first characters of its id; by default the newest, as `gauntlet show` does.

    ```python
    gauntlet.show().report  # in a notebook, a page
    ```

    Raises:
        ConfigError: when there is no such run.
    """
    result: RunResult = _function("show")(run, home=home)
    return result


def bench(
    models: str | Path | Sequence[str | Path],
    inputs: Any = None,
    *,
    home: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Any:
    """Race any ONNX files on any targets, as `gauntlet bench` does; the first is the reference.

    ```python
    result = gauntlet.bench(["model.onnx"], targets=["ort-cpu"], threads=[1], rounds=6)
    print(result.table)
    ```

    Args:
        models: paths of `.onnx` files.
        inputs: samples by input, as `data` of `run`; by default random ones.
        home: the folder of all runs, by default `$GAUNTLET_HOME` or `.gauntlet`.
        quiet: print no progress.
        options: those of the command by name, for example `targets=["ort-cpu", "openvino"]`, `threads=[1, 2]`.

    Returns:
        the measurement: `table`, and by pair of a model and a target `pairs` and `failed`.

    Raises:
        ConfigError: for wrong arguments.
        StageError: when the first model does not run.
    """
    return _function("bench")(models, inputs, home=home, quiet=quiet, **options)


def diagnose(model: Any, data: Any = None, *, home: str | Path | None = None, **options: Any) -> Any:
    """Find common faults of an ONNX model, as `gauntlet diagnose` does.

    ```python
    for finding in gauntlet.diagnose("model.onnx").findings:
        print(finding.cause, finding.fix)
    ```

    Args:
        model: a path, or an `onnx.ModelProto`.
        data: samples by input, as for `run`, and expected outputs by name.
        home: the folder of all runs, by default `$GAUNTLET_HOME` or `.gauntlet`.
        options: those of the command by name, for example `layout="NHWC"`, `fix="fixed.onnx"`.

    Returns:
        the diagnosis: `findings`, and `errors` among them; with `fix`, that of the copy where one was written.

    Raises:
        ConfigError: for wrong arguments.
        StageError: when the file cannot be read.
    """
    return _function("diagnose")(model, data, home=home, **options)


def load(bundle: str | Path, *, threads: int | None = None, provider: str | None = None) -> "Predictor":
    """Return the model of a bundle, or of `models:/NAME@ALIAS`, ready to predict, on the target that it won on.

    ```python
    predictor = gauntlet.load("winner.zip")
    print(predictor.predict(samples[:2]))
    ```

    Where that target cannot run here, ONNX Runtime does, and a warning says why. `threads` are those of the session, by
    default the winner's in the race. `provider` is an execution provider in place of that target, such as `cuda`.

    Raises:
        ConfigError: when it is no bundle, when a file in it is damaged, or when it lacks a signature that
            `GAUNTLET_TRUSTED_KEYS` asks for, or when the provider cannot run here.
        StageError: when the runtime rejects the model, the model rejects this processor, or the provider's outputs
            are not golden.
    """
    from gauntlet.bundle.loading import bundle_at, load_bundle

    return load_bundle(bundle_at(bundle), threads=threads, provider=provider)


def _function(name: str) -> Any:
    """Return what does a function's work; raise `ConfigError` where the folder that brings it was removed."""
    from gauntlet.core.kinds import required

    return required("function", name, f"gauntlet.{name}")

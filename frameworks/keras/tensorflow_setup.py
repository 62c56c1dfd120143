"""Start TensorFlow and Keras on the CPU, with this process's threads and without their log noise."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import Any

from gauntlet.core.errors import StageError
from gauntlet.runtime.resources import usable_threads

NOISE = re.compile(rb"[IWEF]\d{4} |WARNING: All log messages before absl|To enable the following instructions")


@cache
def start_tensorflow() -> Any:
    """Return the package `keras` with the TensorFlow backend; `import tensorflow` is quick after this.

    Only the CPU is used: a GPU rounds differently (TF32), and outputs are compared to 1e-4. Raise StageError if this
    process has loaded Keras with another backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if "tensorflow" not in sys.modules:  # Triton, part of PyTorch, crashes a process that has loaded TensorFlow first
        with contextlib.suppress(ImportError):
            import triton  # noqa: F401
    with _without_noise():
        import keras
        import tensorflow as tf

        if keras.config.backend() != "tensorflow":
            raise StageError(
                f"this process has loaded Keras with the backend {keras.config.backend()!r}; tf2onnx needs "
                "'tensorflow'. Fix: set KERAS_BACKEND=tensorflow, or start a new process"
            )
        with contextlib.suppress(RuntimeError):  # TensorFlow was already configured in this process
            tf.config.set_visible_devices([], "GPU")
            tf.config.threading.set_intra_op_parallelism_threads(usable_threads())
            tf.config.threading.set_inter_op_parallelism_threads(usable_threads())
    tf.get_logger().setLevel("ERROR")
    keras.config.disable_interactive_logging()
    return keras


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Filter what TensorFlow's libraries write straight to stderr while they load; no setting stops all of it."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            os.write(2, b"".join(line for line in captured if not NOISE.match(line)))

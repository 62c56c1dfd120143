"""Starts TensorFlow and Keras: on the CPU, with the threads that this process may use, and without their chatter."""

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

CHATTER = re.compile(rb"[IWEF]\d{4} |WARNING: All log messages before absl|To enable the following instructions")


@cache
def start_tensorflow() -> Any:
    """Return the package `keras`, which computes with TensorFlow; `import tensorflow` is quick after this.

    On the CPU alone, because a GPU would round otherwise (TF32), and the answers are compared to 1e-4.

    Raises:
        StageError: when this process has loaded Keras with another backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if "tensorflow" not in sys.modules:  # Triton comes with PyTorch, and crashes a process that has TensorFlow already
        with contextlib.suppress(ImportError):
            import triton  # noqa: F401
    with _without_chatter():
        import keras
        import tensorflow as tf

        if keras.config.backend() != "tensorflow":
            raise StageError(
                f"this process has loaded Keras with the backend {keras.config.backend()!r}; tf2onnx needs "
                "'tensorflow': set KERAS_BACKEND=tensorflow, or start a fresh process"
            )
        with contextlib.suppress(RuntimeError):  # whoever used TensorFlow in this process before has decided
            tf.config.set_visible_devices([], "GPU")
            tf.config.threading.set_intra_op_parallelism_threads(usable_threads())
            tf.config.threading.set_inter_op_parallelism_threads(usable_threads())
    tf.get_logger().setLevel("ERROR")
    keras.config.disable_interactive_logging()
    return keras


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Hold back what TensorFlow's libraries write straight to the terminal while they load; no setting stops it all."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not CHATTER.match(line)))

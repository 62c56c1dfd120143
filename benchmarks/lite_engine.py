"""Engine for files of TensorFlow Lite, with its interpreter for processors (XNNPACK)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.runtime.engines.base import Engine, TensorInfo


class LiteEngine(Engine):
    """An interpreter of a model with one input and one output, for the batch of the file."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import tensorflow as tf

        self.runtime = f"TensorFlow Lite {tf.__version__}"
        self.interpreter = tf.lite.Interpreter(str(model), num_threads=threads)
        self.interpreter.allocate_tensors()
        [self.taken], [given] = self.interpreter.get_input_details(), self.interpreter.get_output_details()
        self.given, self.outputs = given["index"], [TensorInfo("output", "tensor(float)", [*given["shape"]])]

    def set_samples(self, samples: NamedArrays) -> None:
        """Name the input as the samples do."""
        shape = [int(size) for size in self.taken["shape"]]
        self.inputs = [TensorInfo(name, "tensor(float)", shape) for name in samples]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Copy the input; time the call alone."""
        [values] = feed.values()
        self.interpreter.set_tensor(self.taken["index"], values)
        return self.interpreter.invoke, lambda _: [self.interpreter.get_tensor(self.given)]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return nothing of the nodes, which the interpreter does not tell."""
        return {"asked": "cpu", "nodes": {}}


load_engine = LiteEngine

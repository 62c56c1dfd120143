"""Keras and SavedModels in a worker: the model as it was trained, called as its users call it."""

import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.frameworks.keras import files
from gauntlet.frameworks.keras.model import CallableModel, from_network, from_saved_model
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.runtime.engines.base import Engine, TensorInfo, type_name


class KerasEngine(Engine):
    """A model in inference mode."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        keras = start_tensorflow()
        import tensorflow as tf

        self.runtime = f"keras {keras.__version__}, tensorflow {tf.__version__}"
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        self.model, self.layers = self._read(model)
        # What exporting uses is a graph with an open batch; what it was made from is the call itself.
        plain = getattr(self.model.call, "python_function", self.model.call)
        self.call: Callable[..., Sequence[Any]] = (
            tf.function(plain, jit_compile=options["xla"]) if options["compile"] else plain
        )

    def _read(self, path: Path) -> tuple[CallableModel, list[list[str]]]:
        if path.suffix != files.SAVED_MODEL:
            network = files.load(path)
            return from_network(network), [[layer.name, type(layer).__name__] for layer in network.layers]
        self.folder = tempfile.TemporaryDirectory()  # its assets are read as long as it lives
        try:
            meant = files.unpack_saved_model(path, Path(self.folder.name))
            return from_saved_model(Path(self.folder.name), meant), [[meant, "SavedModel"]]
        except (OSError, zipfile.BadZipFile, StageError) as error:
            told = " ".join(str(error).split())[:200]
            raise StageError(f"{path.name}: no SavedModel that a training left ({told})") from error

    def set_samples(self, samples: NamedArrays) -> None:
        """Find the samples of each input, and whether pictures come with their channels first.

        They do where they fit the model only after a transposition; it is made outside the time, as users bring NHWC.

        Raises:
            StageError: when they fit in neither layout.
        """
        specs = [TensorSpec(name=n, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for n, a in samples.items()]
        wanted = Signature(inputs=tuple(specs), outputs=(), layout="NHWC")
        try:
            self.names = self.model.names(wanted)
        except StageError as refusal:
            wanted = wanted.replace(layout="NCHW")
            try:
                self.names = self.model.names(wanted)
            except StageError:
                raise refusal from None
        self.signature = wanted
        shapes = {spec.name: spec.shape for spec in specs}
        own = ((self.names[name], dtype) for name, dtype, _ in self.model.inputs)
        self.inputs = [TensorInfo(name, type_name(dtype), shapes[name]) for name, dtype in own]
        self.outputs = [TensorInfo(name, type_name("float32"), ["batch"]) for name in self.model.outputs]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Make tensors of the inputs; on the processor, a call returns when it is done."""
        tensors = self.model.tensors(feed, self.signature)
        return lambda: self.call(*tensors), lambda answer: [value.numpy() for value in answer]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the layers, all where the answers are."""
        call, _ = self.bind(feed)
        devices = {str(value.device).rpartition("device:")[2] for value in call()}
        return {"asked": "CPU:0", "nodes": {", ".join(sorted(devices)): self.layers}}


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> KerasEngine:
    """Load a model; `options` are those of the target."""
    return KerasEngine(model, threads, options)

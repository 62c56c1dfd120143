"""Engine for Keras models and SavedModels: the trained model as its users call it."""

import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frameworks.keras import files
from frameworks.keras.model import CallableModel, from_network, from_saved_model
from frameworks.keras.tensorflow_setup import start_tensorflow
from frameworks.session import type_name
from frameworks.trust import untrusted_code
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.runtime.engines.base import Engine, TensorInfo


class KerasEngine(Engine):
    """A model in inference mode; `options` are those of the target."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        keras = start_tensorflow()
        import tensorflow as tf

        self.runtime = f"keras {keras.__version__}, tensorflow {tf.__version__}"
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        self.model, self.layers = self._read(model, trust=options.get("trust", False))
        # The exporter uses a graph with a dynamic batch; users make the plain call that it was traced from.
        plain = getattr(self.model.call, "python_function", self.model.call)
        compiled = tf.function(plain, jit_compile=options["xla"])
        self.call: Callable[..., Sequence[Any]] = compiled if options["compile"] else plain

    def _read(self, path: Path, *, trust: bool) -> tuple[CallableModel, list[list[str]]]:
        if path.suffix != files.SAVED_MODEL:
            network = files.load(path, trust=trust)
            return from_network(network), [[layer.name, type(layer).__name__] for layer in network.layers]
        self.folder = tempfile.TemporaryDirectory()  # the model reads its assets while it exists
        try:
            signature = files.unpack_saved_model(path, Path(self.folder.name))
        except (OSError, zipfile.BadZipFile, StageError) as error:
            summary = one_line(error)
            raise StageError(f"{path.name}: not a SavedModel stored by this project ({summary})") from error
        if not trust:
            raise untrusted_code(path.name, files.PROGRAM)
        return from_saved_model(Path(self.folder.name), signature), [[signature, "SavedModel"]]

    def set_samples(self, samples: NamedArrays) -> None:
        """Match the samples to the inputs, as NHWC or else as NCHW; raise StageError if neither fits.

        The transposition from NCHW is not timed, because users bring NHWC.
        """
        specs = [TensorSpec(name=n, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for n, a in samples.items()]
        self.signature = Signature(inputs=tuple(specs), outputs=(), layout="NHWC")
        try:
            names = self.model.names(self.signature)
        except StageError as error:
            self.signature = self.signature.replace(layout="NCHW")
            try:
                names = self.model.names(self.signature)
            except StageError:
                raise error from None
        shapes = {spec.name: spec.shape for spec in specs}
        inputs = ((names[name], dtype) for name, dtype, _ in self.model.inputs)
        self.inputs = [TensorInfo(name, type_name(dtype), shapes[name]) for name, dtype in inputs]
        self.outputs = [TensorInfo(name, type_name("float32"), ["batch"]) for name in self.model.outputs]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Convert the inputs to tensors; on the CPU, a call returns when it is done."""
        tensors = self.model.tensors(feed, self.signature)
        return lambda: self.call(*tensors), lambda result: [value.numpy() for value in result]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the layers, all on the devices of the outputs."""
        call, _ = self.bind(feed)
        devices = {str(value.device).rpartition("device:")[2] for value in call()}
        return {"asked": "CPU:0", "nodes": {", ".join(sorted(devices)): self.layers}}


load_engine = KerasEngine

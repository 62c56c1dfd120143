"""ONNX Runtime from uint8 images: a timed call normalizes them on the host, as a signature says, and runs the model.

This is what a caller of a normalized model does for every request, so that it can be compared with a model that
normalizes in its graph. Only for this project's own environment.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.images.preprocessing import fitting_inputs
from gauntlet.runtime.engines.base import TensorInfo
from gauntlet.runtime.engines.ort import OrtEngine

MODULE = __name__


class ImageEngine(OrtEngine):
    """A session on the processor behind the preprocessing of the signature in `options`.

    The samples are images of the model's size under the name `image_input`, shape (n, height, width, channels).
    """

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        super().__init__(model, threads, options)
        self.signature = Signature.model_validate_json(options["signature"])
        batch = self.inputs[0].shape[0]
        self.inputs = [TensorInfo(options["image_input"], "tensor(uint8)", (batch, "height", "width", "channels"))]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Return the call from images to outputs."""
        names = [port.name for port in self.get_outputs()]

        def call() -> Any:
            return self.session.run(names, fitting_inputs(feed, self.signature))

        return call, lambda values: [np.asarray(value) for value in values]


load_engine = ImageEngine

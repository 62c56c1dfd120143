"""A bundle's model, ready to predict; `gauntlet predict`, `gauntlet.load` and serving all use it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.images.decoding import decode_image
from gauntlet.images.preprocessing import preprocess
from gauntlet.problems import problem_of
from gauntlet.problems.prediction import Prediction
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

Picture = bytes | Path | Array
"""An image file's bytes, its path, or decoded pixels, shape (height, width, channels)."""


class Predictor:
    """Preprocesses, runs the model, and decodes its outputs as the contract says."""

    def __init__(self, bundle: Bundle, *, threads: int | None = None) -> None:
        self.bundle, self.contract, self.signature = bundle, bundle.contract, bundle.contract.signature
        self.problem = problem_of(self.signature)
        self.session = open_session(bundle.model, threads=threads)

    def __call__(self, picture: Picture) -> Prediction:
        """Return the prediction for one image; `StageError` when it cannot be read."""
        return self.predict([picture])[0]

    def predict(self, pictures: Sequence[Picture], batch: int = 16) -> list[Prediction]:
        """Return one prediction per image; `StageError` when one cannot be read."""
        inputs = self.inputs_of(pictures)
        return list(self.problem.decode(self.run(inputs, batch)))

    def run(self, inputs: NamedArrays, batch: int = 16) -> NamedArrays:
        """Run the model on samples, arrays of shape (n, ...) by input; return the outputs by name, shape (n, ...)."""
        return batched_inference(self.session, inputs).run(batch)

    def inputs_of(self, pictures: Sequence[Picture]) -> NamedArrays:
        """Return the model's input for images, shape (n, ...); `ConfigError` for a model that takes no images."""
        how = self.signature.preprocessing
        if how is None or len(self.signature.inputs) != 1:
            raise ConfigError(f"{self.contract.name}: the model takes {self._inputs_text()}, not images")
        samples = [preprocess(_pixels(p, len(how.mean)), how, self.signature.layout) for p in pictures]
        return {self.signature.inputs[0].name: np.stack(samples)}

    def _inputs_text(self) -> str:
        return ", ".join(f"{i.name} {i.dtype}{list(i.shape)}" for i in self.signature.inputs)


def _pixels(picture: Picture, channels: int) -> Array:
    if isinstance(picture, np.ndarray):
        return picture
    if isinstance(picture, bytes):
        return decode_image(picture, channels)
    try:
        return decode_image(picture.read_bytes(), channels)
    except (OSError, StageError) as error:
        raise StageError(f"{picture}: {error}") from error

"""A bundle's model, ready to predict; `gauntlet predict`, `gauntlet.load` and serving all use it."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.raced_session import open_raced
from gauntlet.core.arrays import Array, NamedArrays, as_array, columns_of, in_shape, require_range
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Preprocessing
from gauntlet.images.decoding import decode_image, pixels_of_image
from gauntlet.images.preprocessing import fitting_inputs, preprocess
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification
from gauntlet.problems.prediction import Prediction
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.resources import usable_threads

Image = bytes | str | Path | PIL.Image.Image | Any
"""An image file's bytes, its path, the open file, Pillow's image, or decoded pixels, shape (height, width, channels).

Pixels are an array, a tensor or a list. Those of type uint8 are 0 to 255, as image files have them; those of another
type have the scale of the training data.
"""
AnyImage = TypeVar("AnyImage", bound=Image)
Sample = tuple[Array, tuple[int, int]]
"""A model's input made from an image, and the image's height and width."""

ONE_IMAGE = (bytes, str, Path, PIL.Image.Image)
THREADS = ("intra_op_num_threads", "inter_op_num_threads")


class Predictor:
    """Preprocesses, runs the model, and decodes its outputs as the contract says.

    The model runs as it won the race: on the contract's target, in its session, or on an execution `provider`.
    `threads` overrides the session's; by default it is the winner's number, or all that this process may use where
    these are fewer. Where it runs otherwise, `not_as_raced` says why in one line.

    Raises:
        ConfigError: when the provider is unknown, or cannot run here.
        StageError: when the runtime rejects the model, or the model rejects this processor.
    """

    def __init__(self, bundle: Bundle, *, threads: int | None = None, provider: str | None = None) -> None:
        if threads is not None and threads < 1:
            raise ConfigError(f"threads: {threads}: at least 1")
        self.bundle, self.contract, self.signature = bundle, bundle.contract, bundle.contract.signature
        self.problem = problem_of(self.signature)
        if isinstance(self.problem, Classification):
            self.problem = replace(self.problem, temperature=self.contract.temperature)
        overrides = dict(self.contract.session or {})
        for name in overrides.keys() & set(THREADS):
            overrides[name] = threads or min(int(overrides[name]), usable_threads())
        self.settings: dict[str, Any] = {"threads": threads, "overrides": overrides}  # of its session
        self.session, self.not_as_raced = open_raced(self.contract, bundle.model, provider=provider, **self.settings)

    def __call__(self, image: Image) -> Prediction:
        """Return the prediction for one image; `StageError` when it cannot be read."""
        self.preprocessing()  # `ConfigError` for a model that takes no images
        return self.predict([image])[0]

    def predict(
        self, images: Image | Sequence[Image] | Mapping[str, Any], batch: int | None = None
    ) -> list[Prediction]:
        """Return one prediction per image, also of one alone; `StageError` when one cannot be read.

        `batch` is the number of images per call, by default the one with the best throughput in the race. A model that
        takes no images takes samples instead, as `run` does.
        """
        if isinstance(images, Mapping) or not self.takes_images:
            return self.decode(self.run(images, batch))
        samples = [self._sample(image) for image in self._several(images)]
        return self.decode(self.run(self._stacked(samples), batch), [size for _, size in samples]) if samples else []

    async def apredict(self, images: Sequence[Image], batch: int | None = None) -> list[Prediction]:
        """Do what `predict` does in a thread, so that an event loop goes on meanwhile."""
        return await asyncio.to_thread(self.predict, images, batch)

    def stream(
        self, images: Iterable[AnyImage], batch: int | None = None
    ) -> Iterator[tuple[AnyImage, Prediction | StageError]]:
        """Yield each image with its prediction, or with the reason why it cannot be read; one batch is in memory."""
        batch, remaining = batch or self.contract.best_batch, iter(images)
        while group := list(islice(remaining, batch)):
            samples = [self._sample_or_error(image) for image in group]
            good = [sample for sample in samples if not isinstance(sample, StageError)]
            sizes = [size for _, size in good]
            predictions = iter(self.decode(self.run(self._stacked(good), batch), sizes) if good else ())
            for image, sample in zip(group, samples, strict=True):
                yield image, sample if isinstance(sample, StageError) else next(predictions)

    def run(self, inputs: Mapping[str, Any] | Any, batch: int | None = None) -> NamedArrays:
        """Run the model on samples, shape (n, ...) by input; return the outputs by name, shape (n, ...).

        Samples are arrays, tensors, lists or Pillow's images, with axes in any order that leaves no doubt; those of a
        model's only input need no name. Columns of a table are found by the names that the model was fitted on. Images
        of type uint8 and of the input's size are normalized, where the contract says how.

        Raises `StageError` when the samples do not fit the inputs, or when the runtime fails.
        """
        return batched_inference(self.session, self._by_input(inputs)).run(batch or self.contract.best_batch)

    def _by_input(self, samples: Mapping[str, Any] | Any) -> NamedArrays:
        names = [spec.name for spec in self.signature.inputs]
        if not isinstance(samples, Mapping):
            columns = {*getattr(samples, "columns", ())}
            if len(names) > 1 and not columns >= {*names}:
                raise StageError(f"the model takes {', '.join(names)}. Fix: give a dictionary of arrays by these names")
            fitted = columns_of(samples, self.signature.columns)
            whole = {names[0]: samples[fitted] if fitted else samples}
            samples = {name: samples[name] for name in names} if len(names) > 1 else whole
        shapes = {spec.name: spec.shape for spec in self.signature.inputs}
        arrays = fitting_inputs({name: as_array(array) for name, array in samples.items()}, self.signature)
        arrays = {name: in_shape(array, shapes.get(name)) for name, array in arrays.items()}
        if empty := [name for name, array in arrays.items() if array.shape[:1] == (0,)]:
            raise StageError(f"there are no samples: {', '.join(empty)} has none")
        return arrays

    def decode(self, outputs: NamedArrays, sizes: Sequence[tuple[int, int]] = ()) -> list[Prediction]:
        """Return one prediction per sample of the outputs of `run`.

        With `sizes`, height and width of the images that the inputs were made from, places are in their pixels;
        otherwise in those of the input.
        """
        predictions, how = self.problem.decode(outputs), self.signature.preprocessing
        if how is None or not sizes:
            return list(predictions)
        return [prediction.on_image(*size, how) for prediction, size in zip(predictions, sizes, strict=True)]

    def inputs_of(self, images: Sequence[Image]) -> NamedArrays:
        """Return the model's input for images, shape (n, ...); `ConfigError` for a model that takes no images."""
        return self._stacked([self._sample(image) for image in images])

    @property
    def takes_images(self) -> bool:
        """Whether the model has one input, with a known preprocessing."""
        return self.signature.takes_images

    def preprocessing(self) -> Preprocessing:
        """Return how an image becomes the input; `ConfigError` for a model that takes no images."""
        how = self.signature.preprocessing
        if how is None or not self.takes_images:
            expected = ", ".join(f"{i.name} {i.dtype}{list(i.shape)}" for i in self.signature.inputs)
            raise ConfigError(f"{self.contract.name}: the model takes {expected}, not images. Fix: predict(samples)")
        return how

    def _several(self, images: Any) -> Iterable[Image]:
        """Return images as they are given: several, or one alone; StageError where an array may be either."""
        shape, channels = tuple(getattr(images, "shape", ())), len(self.preprocessing().mean)
        if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, channels)):
            return [images]
        if len(shape) == 3 and shape[0] == channels > 1:
            either = f"one image with its channels first, or {channels} gray ones"
            raise StageError(
                f"pixels of shape {shape}: {either}. Fix: move the channels to the last axis, or give a list"
            )
        single = isinstance(images, ONE_IMAGE) or hasattr(images, "read") or not isinstance(images, Iterable)
        return [images] if single else images

    def _sample(self, image: Image) -> Sample:
        how = self.preprocessing()
        pixels = pixels_of(image, len(how.mean))
        if pixels.dtype == np.uint8:  # the training data may have had another scale
            how = how.replace(scale=1 / 255)
        return preprocess(pixels, how, self.signature.layout), (pixels.shape[0], pixels.shape[1])

    def _sample_or_error(self, image: Image) -> Sample | StageError:
        try:
            return self._sample(image)
        except StageError as error:
            return error

    def _stacked(self, samples: Sequence[Sample]) -> NamedArrays:
        return {self.signature.inputs[0].name: np.stack([sample for sample, _ in samples])}


def pixels_of(image: Image, channels: int) -> Array:
    """Return an image's pixels, shape (height, width, channels); `StageError` when it cannot be read."""
    if isinstance(image := image.read() if hasattr(image, "read") else image, bytes):
        return decode_image(image, channels)
    if isinstance(image, PIL.Image.Image):
        return pixels_of_image(image, channels)
    if not isinstance(image, str | Path):
        pixels = _listed_pixels(image) if isinstance(image, list | tuple) else as_array(image)
        if pixels.ndim not in (2, 3) or not pixels.size:
            shape, fix = "(height, width, channels)", "Fix: run(inputs) takes what is preprocessed"
            what = f"expected an image, or pixels of shape {shape}; got {type(image).__name__} {pixels.shape}"
            raise StageError(f"{what}. {fix}")
        return pixels
    try:
        return decode_image(Path(image).read_bytes(), channels)
    except OSError as error:
        raise StageError(f"{image}: {error.strerror or error}") from error
    except StageError as error:
        raise StageError(f"{image}: {error}") from error


def _listed_pixels(image: Sequence[Any]) -> Array:
    """Return pixels of lists, which have no type: integers are levels from 0 to 255."""
    pixels = as_array(image)
    if pixels.dtype.kind != "i":
        return pixels
    require_range("image", pixels, np.uint8)
    return pixels.astype(np.uint8)

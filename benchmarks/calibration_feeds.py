"""Calibration samples as ONNX Runtime's `quantize_static` reads them."""

from collections.abc import Iterable

from onnxruntime.quantization import CalibrationDataReader

from gauntlet.core.arrays import NamedArrays


class Feeds(CalibrationDataReader):  # type: ignore[misc]
    """Gives one dictionary of inputs after the other."""

    def __init__(self, feeds: Iterable[NamedArrays]) -> None:
        self._rest = iter(feeds)

    def get_next(self) -> NamedArrays | None:
        """Return the next one, or None."""
        return next(self._rest, None)


def one_by_one(samples: NamedArrays) -> Feeds:
    """Return the samples of the first input, each in a batch of 1."""
    name, values = next(iter(samples.items()))
    return Feeds({name: value[None]} for value in values)

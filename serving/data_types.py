"""From tensors of a request, JSON or binary, to NumPy's arrays."""

from collections.abc import Iterator

import numpy as np

from gauntlet.core.arrays import Array
from serving.errors import InvalidRequest
from serving.open_inference import DATATYPES, STRING_LENGTH

NUMPY_TYPES = {datatype: np.dtype(object if name == "str" else name) for name, datatype in DATATYPES.items()}
JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str}}
"""Kind of an input's type -> types of acceptable JSON values."""
MAX_CHARACTERS = 1 << 24


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """Return the array of a binary tensor without a copy where it is aligned; `InvalidRequest` if the size differs."""
    count = size_of(shape)
    if datatype == "BYTES":
        strings = list(_strings(name, data))
        if len(strings) != count:
            raise InvalidRequest(f"input '{name}': {len(strings)} strings for shape {list(shape)}")
        return _string_array(name, strings, shape)
    kind = NUMPY_TYPES[datatype]
    if len(data) != count * kind.itemsize:
        needed = f"shape {list(shape)} of {datatype} has {count * kind.itemsize}"
        raise InvalidRequest(f"input '{name}': {len(data)} bytes of data; {needed}")
    if kind.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise InvalidRequest(f"input '{name}': a BOOL is one byte, 0 or 1")
    array = np.frombuffer(data, kind.newbyteorder("<")).reshape(shape).astype(kind, copy=False)
    return array if array.flags.aligned else array.copy()


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Array:
    """Return the array of nested or flat JSON values; `InvalidRequest` unless they are of the type and the shape."""
    dtype = NUMPY_TYPES[datatype]
    try:
        array = np.array(data, dtype=object)  # of another type, one long string would make all of them long
    except ValueError as error:
        raise InvalidRequest(f"input '{name}': data is no regular array") from error
    if array.shape != shape and (array.ndim != 1 or array.size != size_of(shape)):
        raise InvalidRequest(f"input '{name}': data has shape {list(array.shape)}, the request says {list(shape)}")
    if not set(map(type, array.ravel())) <= JSON_TYPES[dtype.kind]:
        raise InvalidRequest(f"input '{name}': data has values that are no {datatype}")
    if datatype == "BYTES":
        return _string_array(name, array.ravel().tolist(), shape)
    try:
        return array.astype(dtype).reshape(shape)
    except OverflowError as error:
        raise InvalidRequest(f"input '{name}': a value is outside the range of {datatype}") from error


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of elements, without overflow."""
    count = 1
    for axis in shape:
        count *= axis
    return count


def _string_array(name: str, strings: list[str], shape: tuple[int, ...]) -> Array:
    """Return NumPy's strings, all of which have the memory of the longest."""
    characters = max(map(len, strings), default=0) * len(strings)
    if characters > MAX_CHARACTERS:
        raise InvalidRequest(f"input '{name}': the longest string times their number exceeds {MAX_CHARACTERS}")
    return np.array(strings, np.str_).reshape(shape)


def _strings(name: str, data: memoryview) -> Iterator[str]:
    """Yield strings that are each preceded by their length, 4 bytes."""
    place = 0
    while place < len(data):
        if place + STRING_LENGTH.size > len(data):
            raise InvalidRequest(f"input '{name}': the data ends within a string's length")
        (length,) = STRING_LENGTH.unpack_from(data, place)
        place += STRING_LENGTH.size
        if place + length > len(data):
            raise InvalidRequest(f"input '{name}': a string of {length} bytes exceeds the data")
        try:
            yield bytes(data[place : place + length]).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"input '{name}': strings must be UTF-8") from error
        place += length

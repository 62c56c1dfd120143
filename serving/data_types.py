"""The protocol's data types and NumPy's.

Spec: Open Inference Protocol v2, "Tensor Data Types"; its binary extension is little endian and row major.
"""

import struct
from collections.abc import Iterator

import numpy as np

from gauntlet.core.arrays import Array
from serving.errors import InvalidRequest

DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "str": "BYTES",
}
"""NumPy's name of a type -> the protocol's."""
NUMPY_TYPES = {datatype: np.dtype(object if name == "str" else name) for name, datatype in DATATYPES.items()}
JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str}}
"""Kind of an input's type -> types of acceptable JSON values."""
MAX_CHARACTERS = 1 << 24
LENGTH = struct.Struct("<I")


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
    array = np.frombuffer(data, kind.newbyteorder("<")).reshape(shape)
    return np.require(array, kind, ["A", "C"])


def to_bytes(array: Array) -> bytes:
    """Return an array as a binary tensor."""
    if array.dtype.kind not in "OUS":
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    encoded = (str(value).encode() for value in array.ravel().tolist())
    return b"".join(LENGTH.pack(len(value)) + value for value in encoded)


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Array:
    """Return the array of nested or flat JSON values; `InvalidRequest` unless they are of the type and the shape."""
    wanted = NUMPY_TYPES[datatype]
    try:
        found = np.array(data, dtype=object)  # of another type, one long string would make all of them long
    except ValueError as error:
        raise InvalidRequest(f"input '{name}': data is no regular array") from error
    if found.shape != shape and (found.ndim != 1 or found.size != size_of(shape)):
        raise InvalidRequest(f"input '{name}': data has shape {list(found.shape)}, the request says {list(shape)}")
    if not set(map(type, found.ravel())) <= JSON_TYPES[wanted.kind]:
        raise InvalidRequest(f"input '{name}': data has values that are no {datatype}")
    if datatype == "BYTES":
        return _string_array(name, found.ravel().tolist(), shape)
    try:
        return found.astype(wanted).reshape(shape)
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
        if place + LENGTH.size > len(data):
            raise InvalidRequest(f"input '{name}': the data ends within a string's length")
        (length,) = LENGTH.unpack_from(data, place)
        place += LENGTH.size
        if place + length > len(data):
            raise InvalidRequest(f"input '{name}': a string of {length} bytes exceeds the data")
        try:
            yield bytes(data[place : place + length]).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"input '{name}': strings must be UTF-8") from error
        place += length

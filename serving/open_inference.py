"""Tensors of the Open Inference Protocol v2: its data types, and requests of its binary extension.

Spec: https://github.com/kserve/open-inference-protocol, "Tensor Data Types"; the binary extension is Triton's, little
endian and row major.
"""

import json
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays

DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "str": "BYTES",
}
"""NumPy's name of a type -> the protocol's."""
JSON_LENGTH_HEADER = "inference-header-content-length"
"""How many bytes of a body are JSON; the binary tensors follow."""
STRING_LENGTH = struct.Struct("<I")


def datatype_of(array: Array) -> str:
    """Return the protocol's type of an array."""
    return _datatype(array.dtype)


@lru_cache
def _datatype(kind: np.dtype[Any]) -> str:
    return "BYTES" if kind.kind in "OUS" else DATATYPES[kind.name]  # NumPy computes the name anew each time


def to_bytes(array: Array) -> bytes:
    """Return an array as a binary tensor; strings are each preceded by their length, 4 bytes."""
    if array.dtype.kind not in "OUS":
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    encoded = (str(value).encode() for value in array.ravel().tolist())
    return b"".join(STRING_LENGTH.pack(len(value)) + value for value in encoded)


def binary_request(inputs: NamedArrays, **more: object) -> tuple[bytes, dict[str, str]]:
    """Return the body of `infer` with binary tensors in both directions, and its headers; `more` joins the JSON."""
    tensors, parts = [], []
    for name, array in inputs.items():
        parts.append(to_bytes(array))
        size = {"binary_data_size": len(parts[-1])}
        shape = list(array.shape)
        tensors.append({"name": name, "shape": shape, "datatype": datatype_of(array), "parameters": size})
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}, **more}).encode()
    return b"".join([head, *parts]), {JSON_LENGTH_HEADER: str(len(head)), "content-type": "application/octet-stream"}

"""From the body of `infer` to NumPy's arrays, and from arrays to the body of its response."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from pydantic import ValidationError
from pydantic_core import to_json

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import Signature, TensorSpec
from serving.errors import InvalidRequest, TooLarge
from serving.open_inference import DATATYPES, JSON_LENGTH_HEADER, STRING_LENGTH, datatype_of, to_bytes
from serving.protocol import InferRequest, RequestInput

MAX_JSON_BYTES = 16_000_000
JSON_FRAME_BYTES, MAX_VALUE_BYTES = 65_536, 32
"""What a request has besides its values, and a value with its separator."""
JSON_PART_VALUES, MAX_JSON_VALUES = 4096, 1 << 24
"""Of outputs: those that are written at once, and those of a response."""
NO_DATA = b'"data":[]'
UNSUPPORTED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification")


@dataclass(frozen=True)
class InferCall:
    """A request that fits the model's signature."""

    id: str | None
    inputs: NamedArrays
    outputs: Mapping[str, bool]
    """Outputs in the order of the response, and whether each is to be binary."""
    deadline_s: float | None
    """From the request's arrival; None where it names none."""


def decode_request(body: bytes, json_length: str | None, signature: Signature) -> InferCall:
    """Read a request; `json_length` is the header of the binary extension, None where there is none.

    Raises:
        InvalidRequest: when the request does not follow the protocol or the signature.
    """
    length = _json_length(json_length, len(body))
    try:
        request = InferRequest.model_validate_json(memoryview(body)[:length].tobytes() if length < len(body) else body)
    except ValidationError as error:
        raise InvalidRequest(f"the request is not one of the protocol: {first_error(error)}") from error
    inputs = _inputs(request, memoryview(body)[length:], signature)
    return InferCall(request.id, inputs, _outputs(request, signature), _deadline_s(request))


def require_json_fits(body: bytes, json_length: str | None, signature: Signature, max_rows: int) -> int:
    """Return the size of a body's JSON; `TooLarge` where the model's inputs of so many rows cannot have so much.

    Nothing is parsed before: parsed JSON takes 20 times its size.
    """
    size, values = _json_length(json_length, len(body)), 0
    for spec in signature.inputs:
        fixed = [axis for axis in spec.shape if isinstance(axis, int)]
        is_bounded = len(spec.shape) - len(fixed) <= isinstance(next(iter(spec.shape), 0), str)
        values += max_rows * math.prod(fixed) if is_bounded and spec.dtype != "str" else MAX_JSON_BYTES
    limit = min(MAX_JSON_BYTES, JSON_FRAME_BYTES + MAX_VALUE_BYTES * values)
    if size > limit:
        raise TooLarge(f"{size} bytes of JSON; at most {limit} are allowed. Fix: send binary tensors")
    return size


def encode_response(call: InferCall, outputs: NamedArrays, name: str, version: str) -> tuple[bytes, dict[str, str]]:
    """Return the body of the response and its headers; `TooLarge` where JSON would have too many values."""
    if (values := json_values(call, outputs)) > MAX_JSON_VALUES:
        raise TooLarge(
            f"{values} values of outputs; at most {MAX_JSON_VALUES} come as JSON. Fix: ask for binary outputs"
        )
    entries: list[dict[str, Any]] = []
    tensors: list[bytes] = []
    in_parts = values > JSON_PART_VALUES
    for output, binary in call.outputs.items():
        array = outputs[output]
        entry: dict[str, Any] = {"name": output, "datatype": datatype_of(array), "shape": list(array.shape)}
        if binary:
            tensors.append(to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(tensors[-1])}
        else:
            entry["data"] = [] if in_parts else array.ravel().tolist()
        entries.append(entry)
    head: dict[str, Any] = {"model_name": name, "model_version": version}
    if call.id is not None:
        head["id"] = call.id
    text = to_json({**head, "outputs": entries}, inf_nan_mode="strings")  # JSON has no NaN
    if in_parts:
        first, *others = text.split(NO_DATA)  # in a text of JSON, the marks before and behind the word are escaped
        arrays = (outputs[output] for output, binary in call.outputs.items() if not binary)
        pairs = zip(arrays, others, strict=True)
        text = first + b"".join(NO_DATA[:-1] + b",".join(_json_parts(array)) + b"]" + rest for array, rest in pairs)
    if not tensors:
        return text, {"content-type": "application/json"}
    return b"".join([text, *tensors]), {"content-type": "application/octet-stream", JSON_LENGTH_HEADER: str(len(text))}


def json_values(call: InferCall, outputs: NamedArrays) -> int:
    """Return how many values of outputs are to come as JSON."""
    return sum(outputs[output].size for output, binary in call.outputs.items() if not binary)


def _json_parts(array: Array) -> Iterator[bytes]:
    """Yield the values in parts: Python's numbers take many times their memory, and no other thread runs meanwhile."""
    flat = array.reshape(-1)
    for start in range(0, len(flat), JSON_PART_VALUES):
        part = flat[start : start + JSON_PART_VALUES].tolist()
        yield to_json(part, inf_nan_mode="strings")[1:-1]


def first_error(error: ValidationError) -> str:
    """Return the first of pydantic's errors: the place and what is wrong there."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def _json_length(text: str | None, size: int) -> int:
    if text is None:
        return size
    if not (text.isascii() and text.isdecimal()) or len(text) > 12 or int(text) > size:
        raise InvalidRequest(f"Inference-Header-Content-Length: {text[:20]!r}; the body has {size} bytes")
    return int(text)


def _inputs(request: InferRequest, binary: memoryview, signature: Signature) -> NamedArrays:
    specs = {spec.name: spec for spec in signature.inputs}
    arrays: NamedArrays = {}
    place = 0
    for tensor in request.inputs:
        spec = specs.get(tensor.name)
        if spec is None or tensor.name in arrays:
            problem = "is given twice" if tensor.name in arrays else f"is unknown; the model takes {', '.join(specs)}"
            raise InvalidRequest(f"input '{tensor.name}' {problem}")
        _require_fit(tensor, spec)
        _refuse_unsupported(tensor.name, tensor.parameters)
        shape, size = tuple(tensor.shape), tensor.parameters.get("binary_data_size")
        if size is None:
            arrays[spec.name] = from_json(spec.name, tensor.datatype, shape, tensor.data)
            continue
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(binary) - place:
            raise InvalidRequest(
                f"input '{spec.name}': binary_data_size {size!r}; {len(binary) - place} bytes are left"
            )
        if tensor.data is not None:
            raise InvalidRequest(f"input '{spec.name}' has both data and binary_data_size")
        arrays[spec.name] = from_bytes(spec.name, tensor.datatype, shape, binary[place : place + size])
        place += size
    if place != len(binary):
        raise InvalidRequest(f"{len(binary) - place} bytes of binary data belong to no input")
    if missing := [name for name in specs if name not in arrays]:
        raise InvalidRequest(f"input '{missing[0]}' is missing")
    return arrays


def _require_fit(tensor: RequestInput, spec: TensorSpec) -> None:
    datatype = DATATYPES[spec.dtype]
    if tensor.datatype != datatype:
        raise InvalidRequest(f"input '{spec.name}' is {datatype}, not {tensor.datatype[:20]!r}")
    fits = len(tensor.shape) == len(spec.shape) and all(
        axis == size if isinstance(size, int) else axis > 0 for axis, size in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits:
        shape = ", ".join(str(axis) for axis in spec.shape)
        raise InvalidRequest(f"input '{spec.name}' has shape [{shape}], not {tensor.shape}")


def _outputs(request: InferRequest, signature: Signature) -> dict[str, bool]:
    everything = request.parameters.get("binary_data_output", False)
    _require_flag("binary_data_output", everything)
    _refuse_unsupported("the request", request.parameters)
    known = [spec.name for spec in signature.outputs]
    if not request.outputs:
        return {name: bool(everything) for name in known}
    outputs: dict[str, bool] = {}
    for output in request.outputs:
        if output.name not in known:
            raise InvalidRequest(f"output '{output.name[:80]}' is unknown; the model has {', '.join(known)}")
        _refuse_unsupported(output.name, output.parameters)
        binary = output.parameters.get("binary_data", everything)
        _require_flag("binary_data", binary)
        outputs[output.name] = bool(binary)
    return outputs


def _deadline_s(request: InferRequest) -> float | None:
    """Return the request's `timeout`, which is in microseconds, as Triton's is."""
    timeout = request.parameters.get("timeout")
    if timeout is None or timeout == 0:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int) or not 0 <= timeout < 2**63:
        raise InvalidRequest(f"parameter 'timeout': {str(timeout)[:80]} is not a number of microseconds")
    return timeout / 1e6


def _require_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter '{name}' is true or false, not {value!r}")


def _refuse_unsupported(owner: str, parameters: Mapping[str, object]) -> None:
    if names := [name for name in UNSUPPORTED if name in parameters]:
        raise InvalidRequest(f"{owner}: the parameter '{names[0]}' is of an extension that this server does not have")


NUMPY_TYPES = {datatype: np.dtype(object if name == "str" else name) for name, datatype in DATATYPES.items()}
JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str}}
"""Kind of an input's type -> types of acceptable JSON values."""
MAX_CHARACTERS, MAX_STRINGS = 1 << 24, 1 << 18
"""Of a tensor."""


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """Return the array of a binary tensor without a copy where it is aligned; `InvalidRequest` if the size differs."""
    count = math.prod(shape)
    if datatype == "BYTES":
        if count > MAX_STRINGS:
            raise InvalidRequest(f"input '{name}': {count} strings; at most {MAX_STRINGS} are allowed")
        strings = list(islice(_strings(name, data), count + 1))
        if len(strings) != count:
            known = "fewer" if len(strings) < count else "more"
            raise InvalidRequest(f"input '{name}': {known} strings than shape {list(shape)} has")
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
    if array.shape != shape and (array.ndim != 1 or array.size != math.prod(shape)):
        raise InvalidRequest(f"input '{name}': data has shape {list(array.shape)}, the request says {list(shape)}")
    if not set(map(type, array.ravel())) <= JSON_TYPES[dtype.kind]:
        raise InvalidRequest(f"input '{name}': data has values that are no {datatype}")
    if datatype == "BYTES":
        return _string_array(name, array.ravel().tolist(), shape)
    outside = InvalidRequest(f"input '{name}': a value is outside the range of {datatype}")
    try:
        with np.errstate(over="raise"):
            array = array.astype(dtype)
    except (OverflowError, FloatingPointError) as error:
        raise outside from error
    if np.isinf(array).any():  # JSON has no infinity, but numbers such as 1e400; binary tensors may have it
        raise outside
    return array.reshape(shape)


def _string_array(name: str, strings: list[str], shape: tuple[int, ...]) -> Array:
    """Return NumPy's strings, all of which have the memory of the longest."""
    characters = max(map(len, strings), default=0) * len(strings)
    if characters > MAX_CHARACTERS:
        raise InvalidRequest(f"input '{name}': the longest string times their number exceeds {MAX_CHARACTERS}")
    if any(text.endswith("\0") for text in strings):
        raise InvalidRequest(f"input '{name}': a text ends with the character NUL, which NumPy would leave out")
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

"""The prepared model with more outputs: reductions of its activations, or the activations themselves."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tasks.model_file import external_locations
from tasks.runtime.session import open_session

REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceSum", "Size")
Values = Mapping[str, onnx.ValueInfoProto]


@contextmanager
def reduced(prepared: Path, values: Values) -> Iterator[tuple[Any, list[str]]]:
    """Open a session that answers four numbers a tensor, those of `REDUCTIONS`; yield it with the outputs' names."""
    proto = onnx.load(prepared, load_external_data=False)
    names = []
    for number, (tensor, info) in enumerate(values.items()):
        for operator in REDUCTIONS:
            name = f"gauntlet-{number}-{operator}"
            kind = onnx.TensorProto.INT64 if operator == "Size" else info.type.tensor_type.elem_type
            node = helper.make_node(operator, [tensor], [name], name=name)
            if operator != "Size":  # with its axes kept, ONNX Runtime reduces an empty tensor too
                node.attribute.append(helper.make_attribute("keepdims", 1))
            proto.graph.node.append(node)
            proto.graph.output.append(helper.make_tensor_value_info(name, kind, None))
            names.append(name)
    with _opened(proto, prepared) as session:
        yield session, names


@contextmanager
def tapped(prepared: Path, values: Values) -> Iterator[tuple[Any, list[str]]]:
    """Open a session that answers the tensors; yield it with the names of those that are no inputs."""
    proto = onnx.load(prepared, load_external_data=False)
    known = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    proto.graph.output.extend(info for name, info in values.items() if name not in known)
    inputs = {value.name for value in proto.graph.input}
    with _opened(proto, prepared) as session:
        yield session, [name for name in values if name not in inputs]


@contextmanager
def _opened(proto: onnx.ModelProto, prepared: Path) -> Iterator[Any]:
    if not external_locations(proto):
        yield open_session(proto.SerializeToString(), level="off")
        return
    path = prepared.with_name(f"tapped-{prepared.name}")  # where the file with its weights is
    onnx.save(proto, path)
    try:
        yield open_session(path, level="off")
    finally:
        path.unlink()

"""What is in a model file: read in a child process, without its external data, and without running it."""

from pathlib import Path

from pydantic import Field

from tasks.errors import ConfigError, StageError
from tasks.frozen import Frozen
from tasks.inspect.layers import Layer, OperatorRow, by_operator, layers
from tasks.inspect.listing import listing
from tasks.runtime.graph import opsets, read_graph, required_inputs, text_of_type
from tasks.runtime.sandbox import ChildFailed, run_apart
from tasks.signature import Signature

TIMEOUT_S = 7.0
MEMORY_BYTES = 1_500_000_000


class Inspection(Frozen):
    """The whole answer. MACs are multiply-accumulate operations of convolutions and matrix products, for one sample."""

    model: str
    size_bytes: int = Field(description="of the file itself, without external data")
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: dict[str, str] = Field(description="type and shape by name, of the inputs that a caller must give")
    outputs: dict[str, str]
    parameters: int = Field(description="stored numbers but for those in int64, which are shapes and indices")
    weights_bytes: int = Field(description="of all stored tensors, external data included")
    macs: int = Field(description="of all nodes whose shapes are known")
    nodes_of_unknown_macs: int
    operators: tuple[OperatorRow, ...] = Field(description="the heaviest first")
    layers: tuple[Layer, ...] = Field(description="nodes with stored tensors or MACs, in the graph's order")
    graph: tuple[str, ...] = Field(description="a line a node; those of branches are indented")
    signature: Signature | None
    metadata: dict[str, str]


def inspect(path: Path) -> Inspection:
    """Read a model.

    Raises:
        ConfigError: when there is no such file.
        StageError: when it is no ONNX model, or reading it goes wrong.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".onnx":
        raise ConfigError(f"{path}: not a model: a file named *.onnx is asked for")
    size = path.stat().st_size
    timeout_s, memory = TIMEOUT_S + size // 10_000_000, MEMORY_BYTES + 4 * size
    try:
        return run_apart(_read, path, timeout_s=timeout_s, memory_bytes=memory).value
    except ChildFailed as error:
        raise StageError(f"{path.name}: the model cannot be inspected: {error}") from error


def _read(path: Path) -> Inspection:
    proto = read_graph(path)
    rows = layers(proto)
    try:
        signature = Signature.read(proto)
    except StageError:
        signature = None
    producer = " ".join(word for word in (proto.producer_name, proto.producer_version) if word)
    return Inspection(
        model=path.name,
        size_bytes=path.stat().st_size,
        producer=producer,
        ir_version=proto.ir_version,
        opsets=opsets(proto),
        inputs={i.name: text_of_type(i) for i in required_inputs(proto.graph)},
        outputs={o.name: text_of_type(o) for o in proto.graph.output},
        parameters=sum(row.parameters for row in rows),
        weights_bytes=sum(row.weights_bytes for row in rows),
        macs=sum(row.macs or 0 for row in rows),
        nodes_of_unknown_macs=sum(row.macs is None for row in rows),
        operators=by_operator(rows),
        layers=tuple(row for row in rows if row.weights_bytes or row.macs != 0),
        graph=tuple(listing(proto)),
        signature=signature,
        metadata={p.key: p.value for p in proto.metadata_props if p.key != "gauntlet.signature"},
    )

"""The fix of a frozen batch: name the axis, and take the batch out of the Reshapes that hold it."""

import numpy as np
import onnx
from onnx import numpy_helper

from tasks.diagnose.batch import constant_shapes, frozen_values, reshapes_to
from tasks.diagnose.clues import Clues
from tasks.runtime.graph import Axes, axes, known_axes, required_inputs

NAME = "batch"


def fix(clues: Clues, batch: int) -> str:
    """Make the batch dynamic, in place; return what was done. `batch` is the size with which the model runs now."""
    graph = clues.graph
    frozen = frozen_values(clues)
    firsts = [(axes(v) or (None,))[0] for v in (*frozen, *required_inputs(graph))]
    name = next((a for a in firsts if isinstance(a, str)), NAME)
    for value in frozen:
        _rename(value, name)
    del graph.value_info[:]  # what was inferred from the frozen batch
    outputs = list(graph.output)
    for output in outputs:
        if axes(output) and (axes(output) or (None,))[0] == batch:
            _rename(output, name)
    rewritten = _free_reshapes(clues.proto, batch, name)
    many = f", and took it out of {rewritten} Reshape{'s' if rewritten != 1 else ''}" if rewritten else ""
    return f"named the batch axis '{name}'{many}"


def _rename(value: onnx.ValueInfoProto, name: str) -> None:
    value.type.tensor_type.shape.dim[0].dim_param = name


def _free_reshapes(proto: onnx.ModelProto, batch: int, name: str) -> int:
    """Rewrite the Reshapes that the batch reaches, from the front to the back; return how many."""
    graph = proto.graph
    rewritten = 0
    bare = onnx.ModelProto()
    while candidates := reshapes_to(graph, batch):
        bare.CopyFrom(proto)
        for output in bare.graph.output:  # a declared shape would hide what follows from the inputs
            output.type.tensor_type.ClearField("shape")
        known = known_axes(bare, through_values=True)
        reached = [n for n in candidates if name in known.get(n.input[0], ())]
        for node in reached:
            _free(graph, node, known[node.input[0]], name, rewritten)
            rewritten += 1
        if not reached:
            break
    return rewritten


def _free(graph: onnx.GraphProto, node: onnx.NodeProto, data: Axes, name: str, number: int) -> None:
    """Give a Reshape a shape of its own, in which the batch is copied (0) or counted (-1)."""
    shape = constant_shapes(graph)[node.input[1]]
    keeps_zero = any(a.name == "allowzero" and a.i for a in node.attribute)
    if data[0] == name and not keeps_zero:
        shape[0] = 0
    elif -1 not in shape:
        shape[0] = -1
    else:  # the one free place is taken: it can hold the batch only if its own number is known
        rest = [axis for axis in data[1:] if isinstance(axis, int)]
        fixed = int(np.prod([n for n in shape[1:] if n > 0]))
        if len(rest) == len(data) - 1 and fixed and int(np.prod(rest)) % fixed == 0:
            shape = [int(np.prod(rest)) // fixed if n == -1 else n for n in shape]
        shape[0] = -1
    own = f"{node.input[1]}_any_batch_{number}"
    graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), own))
    node.input[1] = own

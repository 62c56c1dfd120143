"""Values that float16 cannot hold, in a file that computes in it: ONNX Runtime's CPU hides them.

There it computes float16 in float32, and leaves out the rounding between nodes, so that a sum beyond 65504 is infinite
on other hardware alone.
"""

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Check
from gauntlet.datasets.golden import first_samples
from gauntlet.onnx_model.model_file import read_model, write_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

SAMPLES = 16
SCALES = (1, 2, 4)
"""Of the samples' values: others may be so much larger, and one that is not among the samples is found on none."""
NAME, FIX = "accuracy.overflowing_tensors", "use another recipe, or scale what is large inside the network"


def computes_in_half(model: onnx.ModelProto) -> bool:
    """Return whether weights, or casts, are float16."""
    casts = (a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    return TensorProto.FLOAT16 in {*(tensor.data_type for tensor in model.graph.initializer), *casts}


def half_range_check(model: Path, float_model: Path, inputs: NamedArrays) -> Check:
    """Check that every float16 tensor is finite where the float32 model's is, also for inputs 2 and 4 times as large.

    Tensors are the same where they have the same name.
    """
    some, place = first_samples(inputs, SAMPLES), ""
    with tempfile.TemporaryDirectory() as folder:
        shown = _with_outputs(model, Path(folder) / "half.onnx", None)
        names = [output.name for output in shown.get_outputs() if output.type == "tensor(float16)"]
        for scale in SCALES if any(array.dtype.kind == "f" for array in some.values()) else SCALES[:1]:
            scaled = {name: array * array.dtype.type(scale) for name, array in some.items() if array.dtype.kind == "f"}
            wrong = _non_finite(shown, names, some | scaled)
            if wrong:
                exact = _with_outputs(float_model, Path(folder) / "float.onnx", wrong)
                wrong -= _non_finite(exact, [output.name for output in exact.get_outputs()], some | scaled)
            if wrong:
                first = next(name for name in names if name in wrong)
                place = f"{first!r} exceeds the range of float16, at most 65504, on samples"
                place += f" with values {scale} times as large" if scale > 1 else ""
                break
    return Check.of(NAME, len(wrong), "==", 0, place, FIX)


def _with_outputs(model: Path, path: Path, wanted: Collection[str] | None) -> Any:
    """Return a session of the model with the tensors of these names as outputs besides, or all of its nodes'."""
    proto = read_model(model)
    known = {output.name for output in proto.graph.output}
    made = dict.fromkeys(name for node in proto.graph.node for name in node.output if name and name not in known)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if wanted is None or name in wanted)
    write_model(proto, path)
    return open_session(path, level="off")


def _non_finite(session: Any, names: list[str], inputs: NamedArrays) -> set[str]:
    """Return the tensors with infinity or NaN for some sample; none of inputs that the model refuses."""
    calls, wrong = batched_inference(session, inputs), set[str]()
    for start in range(0, len(calls), calls.batch(1)):
        try:
            values = session.run(names, calls.feed(start, 1)) if names else []
        except Exception:  # the runtime's own exceptions share no public base
            return wrong
        floats = ((name, value) for name, value in zip(names, values, strict=True) if value.dtype.kind == "f")
        wrong |= {name for name, value in floats if not np.isfinite(value).all()}
    return wrong

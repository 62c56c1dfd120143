"""Values that float16 cannot hold: ONNX Runtime's CPU computes it in float32, so they are infinite elsewhere alone."""

import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.report import Check
from gauntlet.datasets.golden import first_samples
from gauntlet.onnx_model.model_file import read_graph, read_model, write_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

SAMPLES = 16
SCALES = (1, 2, 4)
"""Of the samples' values: others may be so much larger."""
NAME, FIX = "accuracy.overflowing_tensors", "use another recipe, or scale what is large inside the network"


def half_range_checks(model: Path, float_model: Path, inputs: NamedArrays) -> tuple[Check, ...]:
    """Return the check that every float16 tensor is finite where that of its name in the float32 model is; else none.

    So they have to be for inputs that are 2 and 4 times as large, too.
    """
    graph = read_graph(model).graph
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    if TensorProto.FLOAT16 not in {*(tensor.data_type for tensor in graph.initializer), *casts}:
        return ()
    some, place, wrong = first_samples(inputs, SAMPLES), "", set[str]()
    for scale in SCALES:
        scaled = {name: array * np.array(scale, array.dtype) for name, array in some.items() if array.dtype.kind == "f"}
        if wrong := _non_finite(model, some | scaled):
            wrong -= _non_finite(float_model, some | scaled, wrong)
        if wrong:
            place = f"{min(wrong)!r} exceeds 65504, the largest float16, for samples"
            place += f" with values {scale} times as large" if scale > 1 else ""
            break
    return (Check.of(NAME, len(wrong), "==", 0, place, FIX),)


def _non_finite(model: Path, inputs: NamedArrays, wanted: Collection[str] | None = None) -> set[str]:
    """Return the wanted tensors, or all float16 ones, with infinity or NaN for a sample that the model takes."""
    with tempfile.TemporaryDirectory() as folder:
        proto, path = read_model(model), Path(folder) / "shown.onnx"
        made = {name for node in proto.graph.node for name in node.output if name}
        made = (made if wanted is None else made & {*wanted}) - {output.name for output in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(made))
        write_model(proto, path)
        session = open_session(path, level="off")
    kinds = ("tensor(float16)",) if wanted is None else ("tensor(float16)", "tensor(float)")
    names = [output.name for output in session.get_outputs() if output.type in kinds]
    calls, wrong = batched_inference(session, inputs), set[str]()
    for start in range(0, len(calls) if names else 0, calls.batch(1)):
        try:
            values = session.run(names, calls.feed(start, 1))
        except Exception:  # the runtime's own exceptions share no public base
            break
        wrong |= {name for name, value in zip(names, values, strict=True) if not np.isfinite(value).all()}
    return wrong

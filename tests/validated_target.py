"""A model on a target, looked at as a race does before it starts."""

import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.target_validation import Validation, validate_target
from gauntlet.runtime.processor import Processor
from gauntlet.targets import OrtCpu
from gauntlet.targets.base import BaseTarget, FrameworkTarget, Precision


class OfFramework(FrameworkTarget):
    """A target that runs its framework's own file."""

    kind: str = "of-framework"
    engine: ClassVar[str] = "nowhere"
    model_suffixes: ClassVar[tuple[str, ...]] = (".own",)


class States(OrtCpu):
    """The CPU provider, with any label."""

    label: Precision = "f32"

    @property
    def declared_precision(self) -> Precision:
        return self.label


class OtherFile(States):
    """A runtime that computes something else: it loads the file beside it whose name begins with `prefix` instead."""

    prefix: str

    def command(self) -> tuple[str, ...]:
        code = "import sys; from pathlib import Path; from gauntlet.runtime import worker as w; "
        code += "from gauntlet.runtime.engines import ort as o; was = o._session; "
        name = f"{self.prefix!r} + Path(file).name"
        code += f"o._session = lambda file, *a, **k: was(Path(file).with_name({name}), *a, **k); "
        code += "w.serve(sys.stdin, sys.stdout)"
        return (sys.executable, "-c", code)

    def unavailable(self) -> None:
        return None


def look(
    model: Path,
    target: BaseTarget,
    inputs: Path,
    expected: ExpectedOutputs,
    timeout_s: float = 60,
    processor: Processor | None = None,
    batch_sizes: tuple[int, ...] = (),
) -> Validation:
    how = {"timeout_s": timeout_s, "processor": processor, "batch_sizes": batch_sizes}
    return validate_target(model, target, expected, inputs, threads=1, **how)


def failed(truth: Validation) -> list[str]:
    return [check.name for check in truth.checks if check.blocks]


def rounded(model: Path, bits: int) -> Path:
    """The same network with so many bits of mantissa in its weights: what a coarser precision does to the answers."""
    proto = onnx.load(model)
    for tensor in (t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT):
        whole = numpy_helper.to_array(tensor).copy().view(np.uint32)
        drop = 23 - bits
        coarse = ((whole + (1 << (drop - 1))) >> drop << drop).view(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(coarse, tensor.name))
    path = model.with_name(f"rounded-{bits}-{model.name}")
    onnx.save(proto, path)
    return path

"""The proof that a changed model computes what the file as it came does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx

from gauntlet.core.errors import StageError, one_line
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import NoisyTolerances, Tolerances, batch_noise, compare_outputs, own_outputs
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.source_session import open_source

STRICTER = 4
"""The steps should be exact, but for the order of sums; the gate `numerics` compares more samples and has to agree."""


@dataclass(frozen=True)
class Proof:
    """The outputs of the file as it came, and how closely they must be kept."""

    cases: dict[str, GoldenCase]
    limits: Tolerances
    folder: Path
    """Holds the models' weights; candidates are written beside them."""
    checker_error: str
    """What ONNX's checker says of the file as it came; empty for a valid file."""
    signature: Signature | None
    """The output whose largest value is the predicted class."""

    @classmethod
    def from_model(cls, model: Path, folder: Path, golden: Golden, limits: Tolerances, samples: int) -> Self:
        """Run the file on golden inputs; `StageError` when it does not run on them."""
        session = open_source(model)
        cases = own_outputs(session, golden.cases, samples)
        signature = Signature.find(read_graph(model))
        strict = limits.replace(samples=samples, max_rel_error=limits.max_rel_error / STRICTER)
        if not isinstance(limits, NoisyTolerances):  # a deep float32 network, too, rounds otherwise in other batches
            noise = batch_noise(strict, session, cases, signature)
            own = {name: min(error, limits.max_rel_error) for name, error in noise.max_rel_error.items()}
            strict = noise.replace(max_rel_error=own).widen(strict)
        return cls(cases, strict, folder, checker_error(model), signature)

    def failure(self, proto: onnx.ModelProto) -> tuple[str, float | None]:
        """Return why the model is not proven equal, empty if it is, and the largest difference of an output."""
        path = self.folder / "candidate.onnx"
        onnx.save(proto, path)
        if not self.checker_error and (error := checker_error(path)):
            return f"not valid ONNX: {error}", None
        try:
            comparison = compare_outputs(self.limits, open_source(path), self.cases, self.signature)
        except StageError as error:
            return one_line(error), None
        return " ".join(comparison.fault(self.limits).split()), comparison.max_abs_error


def checker_error(path: Path) -> str:
    """Return what ONNX's checker says of a file; empty for a valid one."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker and shape inference raise many types
        return one_line(error)
    return ""

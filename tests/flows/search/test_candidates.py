"""What came of recipes: one is done again where a file of its has changed, and the most exact one is repaired."""

import math
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import onnx
import onnx_text
from fake_runs import Seam

from flows.search.base import Base, Reference
from flows.search.candidates import Quantized, Search
from flows.search.time_budget import TimeBudget
from flows.stage import Line
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.candidate import Candidate
from gauntlet.core.signature import signature_from_graph
from tasks.normalize.config import NormalizeFacts
from tasks.quantize.base import Recipe
from tasks.quantize.left_out import LeftOut
from tasks.quantize.static import StaticInt8


class UserFile(Recipe):
    """Takes a file that the user made."""

    kind: Literal["user-file"] = "user-file"
    file: Path

    @property
    def name(self) -> str:
        return self.kind

    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> LeftOut:
        shutil.copy(self.file, target)
        return {}


def test_recipe_whose_file_has_changed_is_done_again(seam: Seam, tmp_path: Path) -> None:
    before, file = tmp_path / "before.onnx", tmp_path / "made.onnx"
    plain = onnx_text.model("m (float[n,4] x) => (float[n,4] y) { y = Relu(x) }")
    signature = signature_from_graph(plain)
    signature.write(plain)

    def quantize(line: Line) -> None:
        onnx.save(plain, before)
        source = line.run.home.store.put(before)
        whole = Base("fp32", source, source, NormalizeFacts.model_construct(precision="float32"))
        reference = Reference({}, source, signature, source, whole, Candidate("fp32", None, "fp32"))
        search = Search(line, line.run.config, reference, whole, TimeBudget(None))
        search.quantize_with(UserFile(file=file), 0)  # which ends here: nothing is quantized

    cached = []
    for operator in ("Relu", "Relu", "Tanh"):
        onnx.save(onnx_text.model(f"m (float[n,4] x) => (float[n,4] y) {{ y = {operator}(x) }}", opset=17), file)
        cached += [entry.cached for entry in seam(quantize).stages if entry.stage == "quantize"]
    assert cached == [False, True, False]


def test_outputs_that_are_no_numbers_are_the_least_exact() -> None:
    """A divisor that is rounded to zero makes such outputs."""
    made = [
        Quantized(Candidate(str(sqnr_db), "fp32", "fp32", sqnr_db=sqnr_db), StaticInt8(), None, inaccurate=True)
        for sqnr_db in (math.nan, 5.0, None, 12.0)
    ]
    assert max(made, key=Quantized.exactness).candidate.sqnr_db == 12
    assert max(made[:2], key=Quantized.exactness).candidate.sqnr_db == 5

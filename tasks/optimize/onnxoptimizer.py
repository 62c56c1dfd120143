"""The ONNX project's optimiser: its fusion and elimination passes, all of them or some by name."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from tasks.frozen import Frozen
from tasks.optimize.onnxscript import ends
from tasks.optimize.rewrite import rewrite


class OnnxOptimizer(Frozen):
    """`onnxoptimizer.optimize`, until nothing changes."""

    kind: Literal["onnxoptimizer"] = "onnxoptimizer"
    passes: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of passes; by default, all that fuse or eliminate"
    )

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind if self.passes is None else f"{self.kind}-{'-to-'.join(ends(self.passes))}"

    def halves(self) -> tuple[Self, ...]:
        """Return two groups with half of the passes each; none for a single pass."""
        passes = self.passes or _all()
        middle = len(passes) // 2
        return (self.replace(passes=passes[:middle]), self.replace(passes=passes[middle:])) if middle else ()

    def apply(self, source: Path, target: Path) -> None:
        """Write the optimised graph."""
        import onnxoptimizer

        known = onnxoptimizer.get_available_passes()
        unknown = [name for name in self.passes or () if name not in known]
        if unknown:
            raise ValueError(f"onnxoptimizer has no pass {unknown[0]!r}; it has {', '.join(known)}")
        passes = self.passes or _all()
        rewrite(lambda model: onnxoptimizer.optimize(model, passes, fixed_point=True), source, target)


def _all() -> tuple[str, ...]:
    import onnxoptimizer

    return tuple(onnxoptimizer.get_fuse_and_elimination_passes())

"""onnxoptimizer: the ONNX project's fusion and elimination passes, all or some by name."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from gauntlet.core.frozen import Frozen
from tasks.optimize.in_memory_pass import apply_in_memory
from tasks.optimize.onnxscript import ends


class OnnxOptimizer(Frozen):
    """`onnxoptimizer.optimize`, repeated until nothing changes."""

    kind: Literal["onnxoptimizer"] = "onnxoptimizer"
    passes: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of passes; by default all fusion and elimination passes"
    )

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind if self.passes is None else f"{self.kind}-{'-to-'.join(ends(self.passes))}"

    def halves(self) -> tuple[Self, ...]:
        """Return two groups with half of the passes each; empty for a single pass."""
        passes = self.passes or _all()
        middle = len(passes) // 2
        return (self.replace(passes=passes[:middle]), self.replace(passes=passes[middle:])) if middle else ()

    def apply(self, model: Path, destination: Path) -> None:
        """Write the optimized model."""
        import onnxoptimizer

        available = onnxoptimizer.get_available_passes()
        unknown = [name for name in self.passes or () if name not in available]
        if unknown:
            raise ValueError(f"onnxoptimizer has no pass {unknown[0]!r}; available: {', '.join(available)}")
        passes = self.passes or _all()
        apply_in_memory(lambda proto: onnxoptimizer.optimize(proto, passes, fixed_point=True), model, destination)


def _all() -> tuple[str, ...]:
    import onnxoptimizer

    return tuple(onnxoptimizer.get_fuse_and_elimination_passes())

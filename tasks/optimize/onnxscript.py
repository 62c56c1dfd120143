"""ONNX Script: its optimizer, and its rewriter alone with all or some rules."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from gauntlet.core.frozen import Frozen
from tasks.optimize.in_memory_pass import apply_in_memory


class OnnxScript(Frozen):
    """`onnxscript.optimizer.optimize`: constant folding and the rewriter's rules, repeated until nothing changes."""

    kind: Literal["onnxscript"] = "onnxscript"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, model: Path, destination: Path) -> None:
        """Write the optimized model."""
        from onnxscript import optimizer

        apply_in_memory(optimizer.optimize, model, destination)


class OnnxScriptRewriter(Frozen):
    """`onnxscript.rewriter.rewrite`, with all or some of its default rules."""

    kind: Literal["onnxscript-rewriter"] = "onnxscript-rewriter"
    rules: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of rules, or the index of an unnamed one; by default all"
    )

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind if self.rules is None else f"{self.kind}-{'-to-'.join(ends(self.rules))}"

    def halves(self) -> tuple[Self, ...]:
        """Return two passes with half of the rules each; empty for a single rule."""
        rules = self.rules or tuple(_rules())
        middle = len(rules) // 2
        return (self.replace(rules=rules[:middle]), self.replace(rules=rules[middle:])) if middle else ()

    def apply(self, model: Path, destination: Path) -> None:
        """Write the rewritten model."""
        from onnxscript import rewriter

        available = _rules()
        unknown = [name for name in self.rules or () if name not in available]
        if unknown:
            raise ValueError(f"ONNX Script has no rule {unknown[0]!r}; available: {', '.join(available)}")
        rules = [available[name] for name in self.rules or available]
        apply_in_memory(lambda proto: rewriter.rewrite(proto, pattern_rewrite_rules=rules), model, destination)


def ends(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first and the last of several names, or the only one."""
    return names[:1] + names[1:][-1:]


def _rules() -> dict[str, Any]:
    """Return the default rules by name, from the optimizer's own list; no public API returns it."""
    from onnxscript import rewriter

    return {rule.name or str(index): rule for index, rule in enumerate(rewriter._DEFAULT_REWRITE_RULES)}

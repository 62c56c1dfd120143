"""ONNX Script's optimiser, and its rewriter alone, whose rules can be named one by one."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from tasks.frozen import Frozen
from tasks.optimize.rewrite import rewrite


class OnnxScript(Frozen):
    """`onnxscript.optimizer.optimize`: constant folding and the rewriter's rules, until nothing changes."""

    kind: Literal["onnxscript"] = "onnxscript"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, source: Path, target: Path) -> None:
        """Write the optimised graph."""
        from onnxscript import optimizer

        rewrite(optimizer.optimize, source, target)


class OnnxScriptRewriter(Frozen):
    """`onnxscript.rewriter.rewrite`, with its default rules or some of them."""

    kind: Literal["onnxscript-rewriter"] = "onnxscript-rewriter"
    rules: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of rules; one without a name is its number. By default, all"
    )

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind if self.rules is None else f"{self.kind}-{'-to-'.join(ends(self.rules))}"

    def halves(self) -> tuple[Self, ...]:
        """Return two passes with half of the rules each; none for a single rule."""
        rules = self.rules or tuple(_rules())
        middle = len(rules) // 2
        return (self.replace(rules=rules[:middle]), self.replace(rules=rules[middle:])) if middle else ()

    def apply(self, source: Path, target: Path) -> None:
        """Write the rewritten graph."""
        from onnxscript import rewriter

        known = _rules()
        unknown = [name for name in self.rules or () if name not in known]
        if unknown:
            raise ValueError(f"ONNX Script has no rule {unknown[0]!r}; it has {', '.join(known)}")
        rules = [known[name] for name in self.rules or known]
        rewrite(lambda model: rewriter.rewrite(model, pattern_rewrite_rules=rules), source, target)


def ends(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first and the last of several names, or the only one."""
    return names[:1] + names[1:][-1:]


def _rules() -> dict[str, Any]:
    """Return the default rules by name. The list is the one that the optimiser itself uses; nothing public names it."""
    from onnxscript import rewriter

    return {rule.name or str(place): rule for place, rule in enumerate(rewriter._DEFAULT_REWRITE_RULES)}

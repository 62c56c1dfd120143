"""ONNX Script: its optimizer, and its rewriter alone with all or some rules."""

from typing import Any, ClassVar, Literal

import onnx
from pydantic import Field

from tasks.optimize.in_memory_pass import InMemoryPass, PassGroup


class OnnxScript(InMemoryPass):
    """`onnxscript.optimizer.optimize`: constant folding and the rewriter's rules, repeated until nothing changes."""

    kind: Literal["onnxscript"] = "onnxscript"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the optimized model."""
        from onnxscript import optimizer

        return optimizer.optimize(proto)


class OnnxScriptRewriter(PassGroup):
    """`onnxscript.rewriter.rewrite`, with all or some of its default rules."""

    kind: Literal["onnxscript-rewriter"] = "onnxscript-rewriter"
    rules: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of rules, or the index of an unnamed one; by default all"
    )
    parts: ClassVar[str] = "rules"

    def default_parts(self) -> tuple[str, ...]:
        """Return the names of all default rules."""
        return tuple(_rules())

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the rewritten model."""
        from onnxscript import rewriter

        rules = _rules()
        return rewriter.rewrite(proto, pattern_rewrite_rules=[rules[name] for name in self.chosen(rules)])


def _rules() -> dict[str, Any]:
    """Return the default rules by name, from the optimizer's own list; no public API returns it."""
    from onnxscript import rewriter

    return {rule.name or str(index): rule for index, rule in enumerate(rewriter._DEFAULT_REWRITE_RULES)}

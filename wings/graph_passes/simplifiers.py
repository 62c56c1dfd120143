"""Passes of other packages that simplify a graph: onnxsim, OnnxSlim and onnxoptimizer."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self

import onnx
from pydantic import Field

from tasks.optimize.in_memory_pass import InMemoryPass


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Make imports of a package fail inside the block, in all threads, unless it is already loaded."""
    absent = package not in sys.modules
    if absent:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules[package]


class OnnxSim(InMemoryPass):
    """`onnxsim.simplify`, without its own comparison on random data: each pass is verified here."""

    kind: Literal["onnxsim"] = "onnxsim"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the simplified model."""
        with _without("torch"):  # onnxsim imports it for a quantizer that is not used here, which takes seconds
            import onnxsim
        return onnxsim.simplify(proto)[0]  # type: ignore[no-any-return]


class OnnxSlim(InMemoryPass):
    """`onnxslim.slim`."""

    kind: Literal["onnxslim"] = "onnxslim"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the slimmed model."""
        import onnxslim

        return onnxslim.slim(proto)  # type: ignore[no-any-return]


class PassGroup(InMemoryPass, ABC):
    """All or some of a library's passes: those named in the field `parts`, or all."""

    parts: ClassVar[str]

    @property
    def name(self) -> str:
        """The candidate's name: with the first and the last of the chosen passes."""
        chosen = getattr(self, self.parts)
        return "-".join([self.kind, "-to-".join(dict.fromkeys([chosen[0], chosen[-1]]))]) if chosen else self.kind

    @abstractmethod
    def default_parts(self) -> tuple[str, ...]:
        """Return the names of all passes."""

    def chosen(self, available: Collection[str]) -> tuple[str, ...]:
        """Return the names of the chosen passes. Raises ValueError when one is not available."""
        names: tuple[str, ...] = getattr(self, self.parts) or self.default_parts()
        for name in names:
            if name not in available:
                raise ValueError(f"{self.kind}.{self.parts}: unknown {name!r}; available: {', '.join(available)}")
        return names

    def halves(self) -> tuple[Self, ...]:
        """Return two groups with half of the passes each; empty for a single pass."""
        names = getattr(self, self.parts) or self.default_parts()
        middle = len(names) // 2
        return tuple(self.replace(**{self.parts: half}) for half in (names[:middle], names[middle:]) if middle)


class OnnxOptimizer(PassGroup):
    """`onnxoptimizer.optimize`, repeated until nothing changes."""

    kind: Literal["onnxoptimizer"] = "onnxoptimizer"
    passes: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of passes; by default all fusion and elimination passes"
    )
    parts: ClassVar[str] = "passes"

    def default_parts(self) -> tuple[str, ...]:
        """Return the names of all fusion and elimination passes."""
        import onnxoptimizer

        return tuple(onnxoptimizer.get_fuse_and_elimination_passes())

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the optimized model."""
        import onnxoptimizer

        passes = self.chosen(onnxoptimizer.get_available_passes())
        return onnxoptimizer.optimize(proto, passes, fixed_point=True)  # type: ignore[no-any-return]


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

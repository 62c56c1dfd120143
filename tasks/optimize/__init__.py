"""Graph optimization: each configured pass or chain makes one candidate, which must pass all gates."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import onnx
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts, Section
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.unions import OneOf
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.onnx_model.model_file import copy_model, read_for_editing, read_graph, write_model
from gauntlet.runtime.graph_fingerprint import optimized_graph_fingerprint
from tasks.optimize.base import Pass
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import PASSES, OrtGraph, apply_pass, layout_nodes
from tasks.optimize.verified_pass import PassFacts

MAX_REASONS = 3
"""Dropped passes that a check names; the facts hold all of them."""
DECIDED = ("accepted", "rejected")
"""Outcomes of passes that changed the graph."""

OptimizeConfig = Annotated[Pass | Chain, OneOf("pass", (*PASSES, Chain))]


class OptimizeFacts(Facts):
    """What the passes changed in the graph."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    custom_operators: dict[str, int] = Field(description="number of non-standard operators by domain")
    passes: tuple[PassFacts, ...] = Field((), description="result of each pass, in order; empty for kind ort")
    nothing_to_gain: str = Field("", description="why it does the same work as the model before; empty if it may not")

    def section(self) -> Section | None:
        """Return the passes of a chain."""
        values = {"passes": self.passes}
        return Section("Graph passes", template="passes.html.j2", values=values) if self.passes else None

    def headline(self) -> str:
        """Return the passes that broke the model."""
        broken = [result.name for result in self.passes if result.broke and result.outcome == "rejected"]
        return f"broken by {', '.join(broken)}" if broken else ""


def optimize(
    config: OptimizeConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    golden: Artifact,
    limits: Tolerances | None = None,
    files: tuple[object, ...] = (),
    budget_s: float | None = None,
) -> Report[OptimizeFacts]:
    """Apply one pass, or a chain of passes, to a copy of the model; the report's artifact is `model`.

    A single pass runs as a chain of one. Each pass is verified on the golden inputs, within `limits`. `files` are the
    user's files; an argument so that their content is part of the cache key. With `budget_s`, passes of a chain
    whose turn comes later are not tried. Raises StageError when ONNX Runtime rejects the model.
    """
    before = read_graph(workspace.path(model))
    signature = Signature.read(before)
    after, passes = _optimized(config, workspace, model, golden, limits or Tolerances(), budget_s)
    signature.write(after)
    path = workspace.folder / "model.onnx"
    kept = workspace.store_file(path, *write_model(after, path))
    custom = [n.domain for n in after.graph.node if n.domain not in ("", "ai.onnx", "ai.onnx.ml")]
    facts = OptimizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        custom_operators={domain: custom.count(domain) for domain in sorted(set(custom))},
        passes=passes,
        nothing_to_gain=_nothing_to_gain(workspace, model, kept, passes),
    )
    added = layout_nodes(after) - layout_nodes(before)
    layout = Check.of("optimize.layout_nodes", added, "<=", 0, unit="nodes").explained(
        "their layout is specific to this processor; another one may not load them",
        "use level: extended; each session chooses the layout for its own processor",
    )
    timed = any(p.timed for p in passes)
    return Report(facts=facts, checks=(*_pass_checks(passes), layout), artifacts={"model": kept}, timed=timed)


def _optimized(
    config: OptimizeConfig,
    workspace: Workspace,
    model: Artifact,
    golden: Artifact,
    limits: Tolerances,
    budget_s: float | None,
) -> tuple[onnx.ModelProto, tuple[PassFacts, ...]]:
    """Write the optimized model to the workspace; return it and the facts of each pass."""
    path = workspace.folder / "model.onnx"
    if isinstance(config, OrtGraph):  # every session applies it in this process anyway
        try:
            return apply_pass(config, workspace.path(model), path), ()
        except Exception as error:  # ONNX Runtime's own types
            raise StageError(f"{config.kind}: {error}") from error
    chain = config if isinstance(config, Chain) else Chain(passes=(config,))
    result, passes = chain.run(workspace, workspace.path(model), workspace.path(golden), limits, budget_s)
    copy_model(result, path)
    return read_for_editing(path), passes


@lru_cache(maxsize=2)  # every candidate is compared with the same model before the passes
def _fingerprint(path: Path, sha256: str) -> str | None:
    """Return the digest of the graph as ONNX Runtime optimizes it, or None: a gate reports a rejected model."""
    try:
        return optimized_graph_fingerprint(path)
    except StageError:
        return None


def _nothing_to_gain(workspace: Workspace, model: Artifact, kept: Artifact, passes: tuple[PassFacts, ...]) -> str:
    """Return why a file does the same work as the model before the passes; empty where it may not."""
    if passes and not any(p.outcome in DECIDED for p in passes):
        reasons = dict.fromkeys(p.reason for p in passes if p.reason)  # all passes may have the same one
        which = "pass that was tried" if any(p.outcome == "not tried" for p in passes) else "pass"
        return "; ".join([f"nothing to gain here: no {which} changes the graph", *reasons])
    if passes and not any(p.outcome == "accepted" for p in passes):
        return ""
    before, after = (_fingerprint(workspace.path(m), m.sha256) for m in (model, kept))
    same = before is not None and before == after
    return "nothing to gain here: ONNX Runtime optimizes the model to the same graph by itself" if same else ""


def _pass_checks(passes: tuple[PassFacts, ...]) -> tuple[Check, ...]:
    """Return the checks that no pass broke the model and that one was accepted, if any changed it; and of the time."""
    untried = [p.name for p in passes if p.outcome == "not tried"]
    late, fix = f"the time was used up before {', '.join(untried)}", "raise quantize_budget_s, or set it to null"
    in_time = Check.of("optimize.untried_passes", len(untried), "==", 0, late, fix, unit="passes", severity="warning")
    if not any(p.outcome in DECIDED for p in passes):
        return (in_time,) if untried else ()
    summaries = [_summary(p) for p in passes if p.broke and p.outcome == "rejected"]
    intact = Check.of("optimize.broken_passes", len(summaries), "==", 0, unit="passes", severity="warning")
    skipped = "they were skipped; `polygraphy debug reduce` finds the smallest model that a pass breaks, for a report"
    accepted = Check.of("optimize.accepted_passes", sum(p.outcome == "accepted" for p in passes), ">", 0, unit="passes")
    dropped = [_summary(p) for p in passes if p.outcome == "rejected"]
    reason = "; ".join(dropped[:MAX_REASONS]) + (" and others" if len(dropped) > MAX_REASONS else "")
    checks = (
        intact.explained("; ".join(summaries), skipped),
        accepted.explained(f"no pass is left: {reason}" if len(passes) > 1 and reason else reason, ""),
    )
    return (*checks, in_time) if untried else checks


def _summary(facts: PassFacts) -> str:
    return f"{facts.name}: {facts.reason}"

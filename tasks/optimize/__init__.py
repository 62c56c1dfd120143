"""Graph passes: each makes one candidate, which must then pass the same gates as any other model."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tasks.agreement import NumericsConfig
from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import copy_model, read_graph, read_to_change, write_model
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import apply_pass, layout_nodes
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript, OnnxScriptRewriter
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.own import OwnPass
from tasks.optimize.transaction import PassFacts
from tasks.report import Check, Report
from tasks.runtime.fingerprint import runs_as
from tasks.signature import Signature
from tasks.workspace import Workspace

OptimizeConfig = Annotated[
    OrtGraph | OnnxOptimizer | OnnxSim | OnnxSlim | OnnxScript | OnnxScriptRewriter | OwnPass | Chain,
    Field(discriminator="kind"),
]


class OptimizeFacts(Frozen):
    """What the pass did to the graph."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    custom_operators: dict[str, int] = Field(description="count of operators outside the standard, by domain")
    passes: tuple[PassFacts, ...] = Field((), description="what became of each pass, in order; none of ONNX Runtime's")


def users_files(config: OptimizeConfig) -> tuple[Path, ...]:
    """Return the users' files that decide what the passes do."""
    return config.files() if isinstance(config, Chain | OwnPass) else ()


def optimize(
    config: OptimizeConfig,
    out: Workspace,
    *,
    model: Artifact,
    golden: Artifact,
    limits: NumericsConfig | None = None,
    files: tuple[Path, ...] = (),
) -> Report[OptimizeFacts]:
    """Apply one pass, or a chain of passes, to a copy of the model; the report's artifact is `model`.

    A single pass is a chain of one, with a chain's defaults. Each is proven against the golden inputs, within `limits`.
    For a pass that broke the model there is a further artifact, `failing-<pass>`: the smallest model found that it
    breaks, what it makes of it, and inputs. A lone level of ONNX Runtime is applied right here: every session of a run
    goes through it in this process, so that a process apart would keep nothing out.
    `files` are the users' own (`users_files`); a stage's cached work is known by them too.

    Raises:
        StageError: when ONNX Runtime refuses the model.
    """
    before = read_graph(out.path(model))
    signature = Signature.read(before)
    path, failing = out.folder / "model.onnx", dict[str, Artifact]()
    passes: tuple[PassFacts, ...] = ()
    if isinstance(config, OrtGraph):
        try:
            after = apply_pass(config, out.path(model), path)
        except Exception as error:  # of the runtime's own types
            raise StageError(f"{config.kind}: {error}") from error
    else:
        chain = config if isinstance(config, Chain) else Chain(passes=(config,))
        source, passes, failing = chain.work_through(out, out.path(model), out.path(golden), limits or NumericsConfig())
        copy_model(source, path)
        after = read_to_change(path)
    signature.write(after)
    kept = out.keep(path, *write_model(after, path))
    custom = [n.domain for n in after.graph.node if n.domain not in ("", "ai.onnx", "ai.onnx.ml")]
    facts = OptimizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        custom_operators={domain: custom.count(domain) for domain in sorted(set(custom))},
        passes=passes,
    )
    checks = list(_passes(passes) if passes else ())
    if not passes or any(p.outcome == "accepted" for p in passes):
        checks.append(_same_graph(_runs_as(out.path(model), model.sha256), _runs_as(out.path(kept), kept.sha256)))
    checks.append(_layout(layout_nodes(after) - layout_nodes(before)))
    return Report(stage="optimize", facts=facts, checks=tuple(checks), artifacts={"model": kept, **failing})


def _layout(count: int) -> Check:
    """Return the check on the nodes that were laid out for one processor here; a model may have come with some."""
    return Check(
        name="optimize.layout_nodes",
        value=count,
        op="<=",
        limit=0,
        unit="nodes",
        detail="they are laid out for the processor that made them; another one may not load them" if count > 0 else "",
        remedy="take the level extended: a session makes the layout of its own processor itself" if count > 0 else "",
    )


@lru_cache(maxsize=2)  # the model before the pass is asked for by every pass
def _runs_as(path: Path, sha256: str) -> str | None:
    """Return the digest of the graph that the runtime makes of a model; None where it refuses, as a gate will tell."""
    try:
        return runs_as(path)
    except StageError:
        return None


def _same_graph(before: str | None, after: str | None) -> Check:
    same = before is not None and before == after
    return Check(
        name="optimize.same_graph",
        value=int(same),
        op="==",
        limit=0,
        detail="the runtime makes the same graph of it as of the model, so it cannot be faster" if same else "",
        remedy="leave it out for this model" if same else "",
    )


def _passes(passes: tuple[PassFacts, ...]) -> tuple[Check, ...]:
    """Return the checks of a chain: whether a pass broke the model, and whether anything was changed at all."""
    broken = [p for p in passes if p.broke and p.outcome == "rejected"]
    accepted = sum(p.outcome == "accepted" for p in passes)
    alone = len(passes) == 1 and passes[0].outcome == "rejected"
    why = _told(passes[0]) if alone else "no pass changes the graph and stands the proof: this is the FP32 model itself"
    return (
        Check(
            name="optimize.broken_passes",
            value=len(broken),
            op="==",
            limit=0,
            unit="passes",
            severity="warning",
            detail="; ".join(_told(p) for p in broken),
            remedy="they were left out; the artifacts named hold the smallest model that each breaks" if broken else "",
        ),
        Check(
            name="optimize.accepted_passes",
            value=accepted,
            op=">",
            limit=0,
            unit="passes",
            detail="" if accepted else why,
            remedy="" if accepted else "leave it out for this model",
        ),
    )


def _told(facts: PassFacts) -> str:
    place = f" at {', '.join(facts.nodes[:3])}" if facts.nodes else ""
    place += f" and {len(facts.nodes) - 3} more" if len(facts.nodes) > 3 else ""
    return f"{facts.name}{place}: {facts.reason}" + (f" ({facts.artifact})" if facts.artifact else "")

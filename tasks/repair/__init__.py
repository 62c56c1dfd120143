"""Repair: the fewest nodes of a quantised model to leave in float, so that it is good enough and still faster.

One session with a switch at every tensor (`tasks.repair.switches`) ranks the nodes by the noise that each alone brings
to the outputs, and finds the smallest set that should do. Only that set is quantised for good, answered and raced.
Where it falls short, the search asks for more; whatever happens, the best so far is returned. All this is looked for on
the validation images: the test images only judge the result, by the gates that every candidate passes.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TypeGuard

from pydantic import Field

from tasks.accuracy import AccuracyConfig
from tasks.artifact import Artifact
from tasks.data.read import read_split
from tasks.frozen import Frozen
from tasks.model_file import read_model, write_model
from tasks.quantize.static import StaticInt8
from tasks.ranges import Ranges
from tasks.repair.attempt import Attempt
from tasks.repair.effort import Effort, Ranked, Search, Stopped
from tasks.repair.journal import Journal
from tasks.repair.quality import Quality, Reference
from tasks.repair.switches import Switchable
from tasks.report import Check, Report
from tasks.workspace import Workspace

SHOWN = 12
FAR_OFF_DB = 6.0
REPAIRED = "-repaired"
"""Ends the name of a repaired candidate."""


class RepairConfig(Effort):
    """What a repair may cost. What it must reach is in `accuracy`."""

    enabled: bool = Field(True, description="repair static INT8 candidates that their accuracy gate rejects")
    images: int = Field(256, ge=8, description="validation images to search on, at the most")

    def takes(self, recipe: Frozen) -> TypeGuard[StaticInt8]:
        """Tell whether a recipe's candidates can be repaired: only static ones say node by node what is quantised."""
        known = isinstance(recipe, StaticInt8) and recipe.activations != "u16" and recipe.placement == "around"
        return self.enabled and known


class RepairFacts(Frozen):
    """What was found."""

    recipe: str
    float_nodes: tuple[str, ...] = Field(description="left in float, the most important first")
    nodes: int = Field(description="nodes that could have been")
    ranked: int = Field(description="nodes for whose ranking there was time")
    ranking: tuple[Ranked, ...] = Field(description="the nodes whose rounding costs most")
    images: int
    before: Quality | None = Field(description="of the candidate that failed; None where there is nothing to repair")
    attempts: tuple[Attempt, ...] = Field(description="full evaluations, in their order")
    resumed: int = Field(description="answers that an earlier, interrupted search had left")
    stopped: Stopped


def repair(
    config: RepairConfig,
    out: Workspace,
    *,
    recipe: StaticInt8,
    accuracy: AccuracyConfig,
    model: Artifact,
    quantized: Artifact,
    prepared: Artifact,
    ranges: Artifact,
    images: Artifact,
    test: Artifact,
    whole: Artifact | None = None,
) -> Report[RepairFacts]:
    """Quantise the model by the recipe with the fewest nodes in float that pass; the report's artifact is `model`.

    Args:
        config: what it may cost.
        out: where to work; a search that was killed goes on from what it left there.
        recipe: the recipe whose candidate failed.
        accuracy: what the result must keep.
        model: the FP32 model.
        quantized: the candidate that failed.
        prepared: the calibration's model.
        ranges: the calibration's ranges.
        images: a split that no gate judges by.
        test: the split that the gate judges by, of which only the length is read.
        whole: the FP32 model of the main line, where `model` was pruned: the accuracy lost is against this one.
    """
    known, sources = Ranges.read(out.path(ranges)), (out.path(model), out.path(prepared))
    journal = Journal(out.folder / "journal.jsonl")
    resumed, file = len(journal), out.folder / "model.onnx"
    pairs = out.path(quantized)
    if recipe.format != "qdq":  # its pairs stand for the operators, whose form has nothing that could be switched
        pairs = file
        recipe.replace(format="qdq").write(*sources, known, pairs)
    with ThreadPoolExecutor(1) as beside:  # the one is the runtime's work, the other is Python's
        made = beside.submit(Switchable, pairs, sources[1])
        split, known_by = read_split(out.path(images)), out.path(whole) if whole else None
        reference = Reference(sources[0], split, config.images, known_by)
        network = made.result()
    judged = len(read_split(out.path(test)))
    search = Search(config, accuracy, out.path(quantized), network, reference, journal, file, judged)
    best = search.run(lambda nodes: recipe.write(*sources, known, file, float_nodes=nodes)) if network.nodes else None
    chosen = search.in_order(best.float_nodes) if best else ()
    if search.written != frozenset(chosen):
        recipe.write(*sources, known, file, float_nodes=frozenset(chosen))
    proto = read_model(file)
    reference.signature.write(proto)
    facts = RepairFacts(
        recipe=recipe.name,
        float_nodes=chosen,
        nodes=len(network.nodes),
        ranked=len(search.ranking),
        ranking=search.ranking[:SHOWN],
        images=len(reference),
        before=search.before,
        attempts=tuple(search.attempts),
        resumed=resumed,
        stopped=search.stopped,
    )
    artifacts = {"model": out.keep(file, *write_model(proto, file))}
    return Report(stage="repair", facts=facts, checks=_checks(config, facts, best), artifacts=artifacts)


def _checks(config: RepairConfig, facts: RepairFacts, best: Attempt | None) -> tuple[Check, ...]:
    told = f"{len(facts.float_nodes)} of {facts.nodes} nodes in float: {', '.join(facts.float_nodes[:4])}"
    checks = [
        Check(
            name="repair.nodes",
            value=facts.nodes,
            op=">",
            limit=0,
            detail="" if facts.nodes else f"{facts.recipe} has quantised no node that could be left in float",
            remedy="" if facts.nodes else "another recipe; there is nothing to repair",
        )
    ]
    if best is not None:
        checks.append(
            Check(
                name="repair.good",
                value=int(best.good),
                op="==",
                limit=1,
                severity="warning",
                detail=f"{facts.stopped} after {len(facts.attempts)} evaluations; {told}",
                remedy="" if best.good else _way_out(facts.stopped, best),
            )
        )
    if best is not None and best.speed is not None:
        checks.append(
            Check(
                name="repair.min_speedup",
                value=best.speed.high,
                op=">",
                limit=config.min_speedup,
                unit="x",
                detail=f"{best.speed.speedup:.2f}x FP32 in a short race; {told}",
                remedy="keep FP32: what is left of the integers does not pay for the conversions between them",
            )
        )
    return tuple(checks)


def _way_out(stopped: Stopped, best: Attempt) -> str:
    """Predictions are in float, so they do not see where this processor's integer sums saturate."""
    gap = best.predicted.sqnr_db - best.quality.sqnr_db
    if FAR_OFF_DB < gap < math.inf:
        saturated = "as where a processor without VNNI saturates: take 7-bit weights (reduce_range)"
        return f"the answers have {gap:.1f} dB more noise than predicted, {saturated}"
    if stopped == "not even in float":
        return "loosen the limits of `accuracy`, or leave this recipe out"
    return "raise repair.max_evaluations or repair.budget_s"

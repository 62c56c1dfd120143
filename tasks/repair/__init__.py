"""Repair: the fewest nodes of a quantised model to leave in float, so that it is good enough and still faster.

One session with a switch at every tensor (`tasks.repair.switchable_model`) ranks the nodes by the noise that each
alone brings to the outputs, and finds the smallest set that should do. Only that set is quantized, evaluated and raced.
Where it falls short, the search asks for more; whatever happens, the best so far is returned. The search uses the
validation images; the test images only judge the result, by the gates that every candidate passes.

Predictions are in float, with exact sums. On a processor whose integer sums saturate, weights get 7 bits: their sums do
not saturate, so predictions hold there too. That alone may be enough, so it is tried before any node is left in float.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TypeGuard

from pydantic import Field

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.metrics.accuracy_comparison import AccuracyLimits
from gauntlet.onnx_model.model_file import read_model, write_model
from gauntlet.runtime.processor import Processor
from tasks.quantize.static import StaticInt8
from tasks.repair.quality import Limits, QualitySummary, ReferenceOutputs
from tasks.repair.search import MixedPrecisionSearch, NodeSensitivity, SearchBudget, Stopped
from tasks.repair.smallest_set import Nodes
from tasks.repair.switchable_model import SwitchableModel
from tasks.repair.trial import Evaluator, Trial

SHOWN = 12
REPAIRED = "-repaired"
"""Ends the name of a repaired candidate."""


class RepairConfig(SearchBudget):
    """What a repair may cost. What it must reach is in `accuracy`."""

    enabled: bool = Field(True, description="repair static INT8 candidates that their accuracy gate rejects")
    images: int = Field(256, ge=8, description="validation images to search on, at the most")

    def can_repair(
        self, recipe: Frozen, recipes: Collection[Frozen] = (), processor: Processor | None = None
    ) -> TypeGuard[StaticInt8]:
        """Tell whether a recipe's candidates can be repaired: only static ones say node by node what is quantised.

        Args:
            recipe: the recipe.
            recipes: all of the run. Where the repair would start with one of these others, it would only repeat it.
            processor: that of the run; by default, this one.
        """
        if (
            not isinstance(recipe, StaticInt8)
            or recipe.activations == "u16"
            or recipe.qdq_placement != "inputs_and_outputs"
        ):
            return False
        start = recipe.without_saturation(processor or Processor.current())
        return self.enabled and (start == recipe or start not in recipes)


class RepairFacts(Frozen):
    """What was found."""

    recipe: str
    seven_bit: bool = Field(description="weights in 7 bits instead of 8, as sums saturate on this processor")
    float_nodes: tuple[str, ...] = Field(description="left in float, the most important first")
    nodes: int = Field(description="nodes that could have been")
    ranked: int = Field(description="nodes that were ranked: those for which there was time, 0 where none was needed")
    ranking: tuple[NodeSensitivity, ...] = Field(description="the nodes whose rounding costs most")
    images: int
    before: QualitySummary | None = Field(
        description="of the candidate that failed; None where there is nothing to repair"
    )
    trials: tuple[Trial, ...] = Field(description="full evaluations, in their order")
    predictions: int = Field(description="sets whose quality was predicted")
    stopped: Stopped


def repair(
    config: RepairConfig,
    workspace: Workspace,
    *,
    recipe: StaticInt8,
    accuracy: AccuracyLimits,
    model: Artifact,
    quantized: Artifact,
    prepared: Artifact,
    ranges: Artifact,
    images: Artifact,
    test: Artifact,
    whole: Artifact | None = None,
    processor: Processor | None = None,
) -> Report[RepairFacts]:
    """Quantise the model by the recipe with the fewest nodes in float that pass; the report's artifact is `model`.

    Args:
        config: what it may cost.
        workspace: where to work.
        recipe: the recipe whose candidate failed.
        accuracy: what the result must keep.
        model: the FP32 model.
        quantized: the candidate that failed.
        prepared: the calibration's model.
        ranges: the calibration's ranges.
        images: a split that no gate judges by.
        test: the split that the gate judges by, of which only the length is read.
        whole: the FP32 model of the main line, where `model` was pruned: the accuracy lost is against this one.
        processor: where this runs; by default, this machine's.
    """
    start, file = monotonic(), workspace.folder / "model.onnx"
    known, sources = Ranges.read(workspace.path(ranges)), (workspace.path(model), workspace.path(prepared))
    exact = recipe.without_saturation(processor or Processor.current())
    pairs = workspace.path(quantized)
    if exact != recipe or recipe.format != "qdq":  # integer operators have nothing that could be switched
        pairs = file
        exact.replace(format="qdq").quantize(*sources, known, pairs)
    with ThreadPoolExecutor(1) as beside:  # the one is the runtime's work, the other is Python's
        made = beside.submit(SwitchableModel, pairs, sources[1])
        split, known_by = read_split(workspace.path(images)), workspace.path(whole) if whole else None
        reference = ReferenceOutputs(sources[0], split, config.images, known_by)
        network = made.result()

    def write(nodes: Nodes) -> None:
        exact.quantize(*sources, known, file, float_nodes=nodes)

    evaluator = Evaluator(
        network,
        reference,
        file,
        write,
        sensitivity_images=config.sensitivity_images,
        prediction_images=config.prediction_images,
    )
    gate = Limits(accuracy, accuracy.min_sqnr_db, len(read_split(workspace.path(test))))
    search = MixedPrecisionSearch(config, gate, evaluator, start=start, whole_first=exact != recipe)
    before = reference.quality(reference.ask(workspace.path(quantized))) if network.nodes else None
    best = search.run(before) if before else None
    chosen = best.float_nodes if best else ()
    if best is None or best is not search.trials[-1]:
        write(frozenset(chosen))
    proto = read_model(file)
    reference.signature.write(proto)
    facts = RepairFacts(
        recipe=recipe.name,
        seven_bit=exact != recipe,
        float_nodes=chosen,
        nodes=len(network.nodes),
        ranked=len(search.ranking),
        ranking=search.ranking[:SHOWN],
        images=len(reference),
        before=before,
        trials=tuple(search.trials),
        predictions=len(search.predictions),
        stopped=search.stopped,
    )
    artifacts = {"model": workspace.store_file(file, *write_model(proto, file))}
    return Report(stage="repair", facts=facts, checks=_checks(config, facts, best), artifacts=artifacts)


def _checks(config: RepairConfig, facts: RepairFacts, best: Trial | None) -> tuple[Check, ...]:
    seven_bit = "7-bit weights, " if facts.seven_bit else ""
    names = f": {', '.join(facts.float_nodes[:4])}" if facts.float_nodes else ""
    told = f"{seven_bit}{len(facts.float_nodes)} of {facts.nodes} nodes in float{names}"
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
                name="repair.within_limits",
                value=int(best.good),
                op="==",
                limit=1,
                severity="warning",
                detail=f"{facts.stopped} after {len(facts.trials)} evaluations; {told}",
                remedy="" if best.good else _way_out(facts.stopped),
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


def _way_out(stopped: Stopped) -> str:
    if stopped == "not even in float":
        return "loosen the limits of `accuracy`, or leave this recipe out"
    return "raise repair.max_trials or repair.budget_s"

"""Repair: find the fewest nodes of a quantized model to leave in float, so that it is accurate and still faster.

One session with a switch at every tensor (`wings.repair.switchable_model`) ranks units of nodes by the noise that each
alone adds to the outputs, and predicts the smallest sufficient set. Only that set is quantized, evaluated and raced;
if it falls short, the search continues with stricter limits. The search uses the validation images; the test images
only judge the result, by the gates of every candidate.

Where first units are faster in float (`wings.repair.stem`), they are so in every set, and in a candidate of their own.

Predictions use exact sums. On a processor whose integer sums saturate, weights get 7 bits, which cannot saturate. As
this may be enough, it is tried first without any node in float.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeGuard

from pydantic import Field

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds
from gauntlet.core.report import Check, Report
from gauntlet.core.shipping import ShippingStage
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import Split
from gauntlet.onnx_model.model_file import read_graph, read_model, write_model
from gauntlet.problems.accuracy_comparison import AccuracyLimits
from gauntlet.race.contender import Priority
from gauntlet.runtime.processor import Processor
from tasks.quantize import CORRECTION_SAMPLES
from tasks.quantize.static import StaticInt8
from wings.repair.quality import Limits, QualitySummary, ReferenceOutputs
from wings.repair.search import MixedPrecisionSearch, SearchBudget, Stopped, UnitNoise
from wings.repair.stem import MIN_GAIN, Stem, find_stem
from wings.repair.switchable_model import SwitchableModel
from wings.repair.trial import PREDICTION_IMAGES, Evaluator, Trial

SHOWN = 12
PREDICTION_SHARE = 0.02  # of the time, for one prediction
AUTO_BUDGET_S = 20
"""A repair is given less time than by default where `auto` tries several recipes before it."""


class RepairConfig(SearchBudget):
    """Limits on the effort of a repair. The limits on its result are in `accuracy`."""

    enabled: bool = Field(True, description="repair the most exact static INT8 file that the accuracy gate rejects")
    images: int = Field(256, ge=8, description="largest number of validation images for the search")

    def can_repair(
        self,
        recipe: Frozen,
        recipes: Collection[Frozen] = (),
        processor: Processor | None = None,
        *,
        rejected: bool = True,
    ) -> TypeGuard[StaticInt8]:
        """Return whether a recipe can be repaired: only static ones name the nodes to quantize.

        Not if the repair would start with another of the run's `recipes`, because it would only repeat it. An accepted
        file for another runtime has no stem, which is found by ONNX Runtime's kernels. `processor` is this machine's by
        default.
        """
        if not isinstance(recipe, StaticInt8) or recipe.activations == "u16":
            return False
        if not rejected and _is_for_other_runtimes(recipe):
            return False
        start = recipe.without_saturation(processor or Processor.current())
        return self.enabled and (start == recipe or start not in recipes)


class RepairFacts(Facts):
    """The result of the search."""

    recipe: str
    reduced: bool = Field(False, description="weights whose sums do not overflow on this processor")
    float_nodes: tuple[str, ...] = Field(description="nodes left in float, the most important first")
    stem: Stem = Stem()
    nodes: int = Field(description="number of nodes that can be left in float")
    ranked: int = Field(
        0, description="units (a product and what follows until the next) that were ranked; none if none was needed"
    )
    ranking: tuple[UnitNoise, ...] = Field((), description="the units whose rounding adds the most noise")
    images: int = 0
    before: QualitySummary | None = Field(None, description="of the rejected candidate; None if nothing is to repair")
    trials: tuple[Trial, ...] = Field((), description="full evaluations, in order, of sets beside the stem")
    predictions: int = Field(0, description="number of sets whose quality was predicted")
    stopped: Stopped = "nothing to repair"
    nothing_to_gain: str = Field("", description="why nothing is left in float of an accepted candidate")


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
    rejected: bool = True,
    priority: Priority = "auto",
    processor: Processor | None = None,
) -> Report[RepairFacts]:
    """Quantize the FP32 `model` with the fewest nodes in float that satisfy `accuracy`; the artifact is `model`.

    `quantized` is the candidate, of which only the stem is left in float if it is not `rejected`. `images` is a split
    that no gate uses, and `test` the accuracy gate's, of which only the length is read. If `model` was pruned, `whole`
    is the FP32 model to compare its accuracy with. `priority` is that of the trials' races, `processor` this machine's
    by default.
    """
    start, exact = monotonic(), recipe.without_saturation(processor or Processor.current())
    failed, file = workspace.path(quantized), workspace.folder / "model.onnx"
    inputs = (workspace.path(model), workspace.path(prepared), Ranges.read(workspace.path(ranges)), file)
    split, known = read_split(workspace.path(images)), workspace.path(whole) if whole else None
    elsewhere = _is_for_other_runtimes(recipe)
    stem = Stem() if elsewhere else find_stem(failed, inputs[1], split.take(slice(0, 1)))
    if not rejected:
        facts = RepairFacts(recipe=recipe.name, float_nodes=stem.nodes, stem=stem, nodes=stem.of)
        if not stem.nodes:
            return Report(facts=facts.replace(nothing_to_gain=f"floats at the inputs save less than {MIN_GAIN:.0%}"))
        recipe.quantize(*inputs, stem.nodes)
        return Report(facts=facts, artifacts={"model": _store(workspace, inputs, split)})
    with ThreadPoolExecutor(1) as pool:  # one mostly runs Python code, the other the runtime
        opening = pool.submit(_open_switchable, recipe, exact, inputs, failed)
        reference = ReferenceOutputs(inputs[0], split, config.images, known, accuracy)
        network = opening.result()
    write, prediction_s = partial(exact.quantize, *inputs), PREDICTION_SHARE * config.budget_s
    evaluator = Evaluator(
        network, reference, file, write, frozenset(stem.nodes), prediction_s, priority, raced=not elsewhere
    )
    limits = Limits(accuracy, len(read_split(workspace.path(test))))
    search = MixedPrecisionSearch(config, limits, evaluator, start=start, whole_first=exact != recipe)
    before = reference.quality(reference.run(failed)) if network.nodes else None
    best = search.run(before) if before else None
    if best is None or best is not search.trials[-1]:  # the file holds another model
        write((*(best.float_nodes if best else ()), *stem.nodes))
    facts = _facts(recipe, search, before, best, stem)
    timed = facts.stopped in ("not faster", "time used up") or evaluator.prediction_images < PREDICTION_IMAGES
    artifacts = {"model": _store(workspace, inputs, split)}
    return Report(facts=facts, checks=_checks(config, facts, best), artifacts=artifacts, timed=timed)


def _is_for_other_runtimes(recipe: StaticInt8) -> bool:
    """Return whether only inputs are rounded: slow in ONNX Runtime, so that no race of its sessions tells anything."""
    return recipe.qdq_placement == "inputs"


def _open_switchable(
    recipe: StaticInt8, exact: StaticInt8, inputs: tuple[Path, Path, Ranges, Path], failed: Path
) -> SwitchableModel:
    """Return the switchable form of the candidate that failed, or of one quantized for this purpose."""
    if exact == recipe and recipe.format == "qdq":
        file = failed
    else:
        file = inputs[-1]
        exact.replace(format="qdq").quantize(*inputs)  # integer operators cannot be switched
    return SwitchableModel(file, inputs[1], inputs_only=_is_for_other_runtimes(recipe))


def _store(workspace: Workspace, inputs: tuple[Path, Path, Ranges, Path], split: Split) -> Artifact:
    model, prepared, _, file = inputs
    for correct in kinds("correction").values():
        correct(file, prepared, split.take(slice(0, CORRECTION_SAMPLES)))
    proto = read_model(file)
    Signature.read(read_graph(model)).write(proto)
    return workspace.store_file(file, *write_model(proto, file))


def _facts(
    recipe: StaticInt8, search: MixedPrecisionSearch, before: QualitySummary | None, best: Trial | None, stem: Stem
) -> RepairFacts:
    return RepairFacts(
        recipe=recipe.name,
        reduced=search.whole_first,
        float_nodes=(*(best.float_nodes if best else ()), *stem.nodes),
        stem=stem,
        nodes=len(search.evaluator.network.nodes.union(stem.nodes)),
        ranked=len(search.ranking),
        ranking=search.ranking[:SHOWN],
        images=len(search.evaluator.reference),
        before=before,
        trials=tuple(search.trials),
        predictions=len(search.predictions),
        stopped=search.stopped,
    )


REMEDIES: dict[Stopped, str] = {
    "not even in float": "loosen the limits of `accuracy`",
    "evaluations used up": "loosen the limits of `accuracy`",
    "time used up": "raise repair.budget_s",
}


def _checks(config: RepairConfig, facts: RepairFacts, best: Trial | None) -> tuple[Check, ...]:
    nodes = Check(name="repair.nodes", value=facts.nodes - len(facts.float_nodes), op=">", limit=0)
    if best is None:
        return (nodes.explained(f"{facts.recipe} quantizes no node that could be left in float", ""),)
    if not nodes.passed:
        nodes = nodes.explained(f"all {facts.nodes} nodes that could be integer would be in float", "use FP32")
    names = f": {', '.join(facts.float_nodes[:4])}" if facts.float_nodes else ""
    result = f"{len(facts.float_nodes)} of {facts.nodes} nodes in float{names}"
    result = f"weights without overflow, {result}" if facts.reduced else result
    detail, remedy = f"{facts.stopped} after {len(facts.trials)} evaluations; {result}", REMEDIES.get(facts.stopped, "")
    good = Check.of("repair.within_limits", int(best.good), "==", 1, detail, remedy, severity="warning")
    if best.speed is None:
        return nodes, good
    detail = f"{best.speed.speedup:.2f}x FP32 in a short race; {result}"
    remedy = "use FP32: the remaining integer nodes do not outweigh the conversions between them"
    speed = Check.of("repair.min_speedup", best.speed.high, ">", config.min_speedup, detail, remedy, unit="x")
    return nodes, good, speed


REPAIR = ShippingStage(
    repair,
    "rejected",
    RepairConfig,
    Field(default_factory=RepairConfig),
    packages={},
    is_configured=lambda config: config.enabled,
    under_auto={"budget_s": AUTO_BUDGET_S},
    suffix="-repaired",
    suffix_of_accepted="-float-stem",
    fits=RepairConfig.can_repair,
    group=lambda recipe: recipe.qdq_placement,
    before="select",
)
"""The object of the entry point `shipping.repair`; it runs by default."""

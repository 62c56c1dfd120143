"""The candidates of a run: what passes, recipes and pruning make of a network, each behind its gates."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from configs.schema import NORMALIZED, REFERENCE, PipelineConfig
from flows.record.journal import work_clock
from flows.search.base import Base, Reference, export_network
from flows.search.time_budget import TimeBudget
from flows.stage import Line
from gauntlet.core.artifact import Artifact
from gauntlet.core.candidate import Candidate
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.shipping import ShippingStage, configured_stages
from gauntlet.runtime.operator_libraries import operator_libraries
from tasks.accuracy import accuracy
from tasks.calibrate import calibrate
from tasks.evaluate import evaluate
from tasks.numerics import numerics
from tasks.optimize import OptimizeConfig, OptimizeFacts, optimize
from tasks.prune import PruneConfig, prune
from tasks.quantize import QuantizeConfig, methods_of, quantize
from tasks.structure import structure

Candidates = tuple[Candidate, ...]
Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")


class AccuracyLost(GateFailed):
    """The gate of the stage `accuracy` has rejected a candidate."""


def search_candidates(line: Line, config: PipelineConfig, reference: Reference) -> Candidates:
    """Return the reference and every candidate that was tried, in the order of the code."""
    with line.side_by_side(config.runner) as lines:
        normalized = lines.fork(lambda own: add_normalized(own, config, reference))
        search, passed = Search.start(lines, config, reference, reference.base).optimize(config.optimize)
        made = [search.fork(Search.quantize), *(search.fork(Search.prune, pruning) for pruning in config.prune)]
    return (reference.candidate, *normalized.result(), *passed, *chain.from_iterable(each.result() for each in made))


def check_accuracy(candidate: Line, config: PipelineConfig, reference: Reference, base: Base, model: Artifact) -> None:
    """Compare a candidate's accuracy with FP32's, and its noise with the outputs of its own network, if pruned.

    Raises:
        AccuracyLost: when the gate rejects it.
    """
    try:
        candidate.stage(
            accuracy,
            config.accuracy,
            model=model,
            golden=reference.golden,
            test=reference.splits["test"],
            parent_golden=base.golden,
            float_model=base.model,
            temperature=base.temperature,
            min_recall=config.evaluate.recall_limit(reference.signature.task),
            min_precision=config.evaluate.min_precision,
            max_ece=config.evaluate.max_ece,
            batch_sizes=(*config.numerics.batch_sizes, *config.benchmark.batch_sizes),
        )
    except GateFailed as error:
        raise AccuracyLost(str(error)) from error


def add_normalized(line: Line, config: PipelineConfig, reference: Reference) -> Candidates:
    """Make a candidate of the normalized model, unless it is the reference, or becomes the same graph."""
    base = reference.base
    if base.facts.same_graph or base.facts.repaired:
        return ()
    with line.attempt(replace(base.candidate(NORMALIZED, REFERENCE), model=base.model)) as attempt:
        check_accuracy(attempt, config, reference, base, base.model)
    return (attempt.made,)


class Quantized(NamedTuple):
    """What came of a recipe."""

    candidate: Candidate
    recipe: QuantizeConfig
    file: Artifact | None
    """None where it was not tried, or could not be made."""
    inaccurate: bool
    """Whether the accuracy gate rejects it, and nothing else is wrong with it."""

    def exactness(self) -> tuple[float, float]:
        """Return the signal over the noise, in dB, and the accuracy."""
        sqnr_db, accuracy = self.candidate.sqnr_db, self.candidate.accuracy
        return -math.inf if sqnr_db is None or math.isnan(sqnr_db) else sqnr_db, accuracy or 0.0


@dataclass(frozen=True)
class Search:
    """The search for candidates of one network: the whole one, or a pruned one.

    Its methods return what they made. Whether forks are at work side by side or one after another is up to the line.
    """

    line: Line
    config: PipelineConfig
    reference: Reference
    base: Base
    time: TimeBudget

    @classmethod
    def start(cls, line: Line, config: PipelineConfig, reference: Reference, base: Base) -> "Search":
        """Return the search of a network, whose time limit starts now. Waits for others on the host do not count."""
        values = ((getattr(config, name), stage) for name, stage in configured_stages(config, "rejected").items())
        recipes = base.recipes(config)
        used = [value.budget_s for value, stage in values if any(stage.fits(value, each, ()) for each in recipes)]
        clock = work_clock(line.run.journal)
        time = TimeBudget(config.quantize_budget_s, clock, line.at_once, for_repair_s=max(used, default=0.0))
        return cls(line, config, reference, base, time)

    def fork(
        self, method: "Callable[Concatenate[Search, Inputs], Result]", /, *args: Inputs.args, **inputs: Inputs.kwargs
    ) -> "Future[Result]":
        """Call a method of this search on a line of its own: beside what follows, or at once."""
        return self.line.fork(lambda line: method(replace(self, line=line), *args, **inputs))

    def optimize(self, passes: tuple[OptimizeConfig, ...]) -> "tuple[Search, Candidates]":
        """Make a candidate with every graph pass; return the search in what the accepted ones made of the network."""
        together = replace(self, line=self.line.below())
        forks = [together.fork(Search.optimize_with, graph_pass, place) for place, graph_pass in enumerate(passes)]
        results = [fork.result() for fork in forks]
        accepted = [(each, report) for each, (_, report) in zip(passes, results, strict=True) if report is not None]
        return replace(self, base=self.base.after(accepted)), tuple(candidate for candidate, _ in results)

    def optimize_with(self, graph_pass: OptimizeConfig, place: int) -> tuple[Candidate, Report[OptimizeFacts] | None]:
        """Make a candidate with a graph pass, run its gates; return it, and what the pass made if it passed them."""
        config, base, time, accepted = self.config, self.base, self.time, None
        golden, limits = base.golden or self.reference.golden, base.facts.limits(config.numerics)
        with self.line.attempt(base.candidate(base.made_by(graph_pass), base.name)) as attempt, time.graph_pass(place):
            optimized = attempt.make(
                optimize,
                graph_pass,
                model=base.model,
                golden=golden,
                limits=limits,
                files=(graph_pass.files, *operator_libraries()),
                budget_s=time.for_passes,
            )
            model = optimized.artifacts["model"]
            attempt.stage(structure, config.structure, model=model)
            attempt.stage(numerics, limits, model=model, golden=golden, test=self.reference.splits["test"])
            check_accuracy(attempt, config, self.reference, base, model)
            accepted = optimized
        return attempt.made, accepted

    def quantize(self) -> Candidates:
        """Make a candidate with every recipe, from one calibration, and repair one that loses too much accuracy."""
        search = replace(self, base=replace(self.base, calibrated=self.calibrate()))
        recipes = enumerate(self.base.recipes(self.config))
        forks = [search.fork(Search.quantize_with, recipe, place) for place, recipe in recipes]
        made = [fork.result() for fork in forks]
        return (*(each.candidate for each in made), *search.repair(made))

    def calibrate(self) -> Mapping[str, Artifact]:
        """Find the activation ranges that static recipes need; where it fails, these recipes fail one by one."""
        config, base, splits = self.config, self.base, self.reference.splits
        methods, calibration = methods_of(base.recipes(config)), splits.get("calibration")
        calibrated: Mapping[str, Artifact] = {}
        if methods and (calibration or config.calibrate.reader) and base.facts.precision == "float32":
            with self.line.continue_on_failure():
                calibrated = self.line.stage(
                    calibrate,
                    config.calibrate,
                    model=base.model,
                    calibration=calibration,
                    test=splits["test"],
                    methods=methods,
                    files=(config.calibrate.files,),
                ).artifacts
        return calibrated

    def quantize_with(self, recipe: QuantizeConfig, place: int) -> Quantized:
        """Make a candidate with a recipe, and run its gates."""
        base, (parent, model) = self.base, self.base.source(recipe)
        file, inaccurate = None, False
        with self.line.attempt(base.candidate(base.made_by(recipe), parent)) as attempt:
            base.facts.require_float32()
            prepared, ranges = base.calibrated.get("prepared"), base.calibrated.get("ranges")
            with self.time.recipe(place):
                quantized = attempt.make(
                    quantize,
                    recipe,
                    model=model,
                    prepared=prepared,
                    ranges=ranges,
                    samples=self.reference.splits.get("calibration") if ranges else None,
                    files=(recipe.files, *operator_libraries()),
                )
                file = quantized.artifacts["model"]
                try:
                    self.prove_quantized(attempt, file)
                except AccuracyLost:
                    inaccurate = True
                    raise
        return Quantized(attempt.made, recipe, file, inaccurate)

    def repair(self, made: Sequence[Quantized]) -> Candidates:
        """Make a candidate of the most exact file of each group, rejected or not, where a package's stage can."""
        config, has_images = self.config, not {"validation", "calibration"}.isdisjoint(self.reference.splits)
        recipes, candidates = [each.recipe for each in made if each.file], list[Candidate]()
        stages = configured_stages(config, "rejected") if self.base.calibrated and has_images else {}
        made = sorted(made, key=Quantized.exactness, reverse=True)
        for (name, stage), rejected in product(stages.items(), (True, False)):
            value, suffix = getattr(config, name), stage.suffix if rejected else stage.suffix_of_accepted
            tried = [e for e in made if (e.inaccurate if rejected else e.file and e.candidate.status != "rejected")]
            best = dict[str, Quantized]()
            for each in tried if suffix else ():
                if stage.fits(value, each.recipe, recipes, rejected=rejected):
                    best.setdefault(stage.group(each.recipe), each)
            for each in best.values():
                nothing = not candidates and not any(e.file and e.candidate.status != "rejected" for e in made)
                candidates.append(self.repair_with(name, stage, each, rejected=rejected, late=nothing))
        return tuple(candidates)

    def repair_with(self, name: str, stage: ShippingStage, best: Quantized, *, rejected: bool, late: bool) -> Candidate:
        """Make a candidate of a quantized one, and run its gates; only a `late` one is tried when the time is used."""
        config, base, splits = self.config, self.base, self.reference.splits
        suffix = stage.suffix if rejected else stage.suffix_of_accepted
        with self.line.attempt(base.candidate(best.candidate.name + suffix, best.candidate.name)) as attempt:
            if not late:
                self.time.require_repair(f"{name}.budget_s")
            repaired = attempt.make(
                stage.function,
                getattr(config, name),
                recipe=best.recipe,
                accuracy=config.accuracy,
                model=base.model,
                quantized=best.file,
                prepared=base.calibrated["prepared"],
                ranges=base.calibrated["ranges"],
                images=splits.get("validation", splits.get("calibration")),
                test=splits["test"],
                whole=base.unpruned,
                rejected=rejected,
                priority=config.benchmark.priority,
            )
            self.prove_quantized(attempt, repaired.artifacts["model"])
        return attempt.made

    def prove_quantized(self, attempt: Line, quantized: Artifact) -> None:
        """Run the gates of a quantized model, those that packages bring, too; these may note something in its file."""
        config, splits = self.config, self.reference.splits
        attempt.stage(structure, config.structure, model=quantized)
        check_accuracy(attempt, config, self.reference, self.base, quantized)
        for name, stage in configured_stages(config, "quantized").items():
            value, samples = getattr(config, name), splits.get("calibration", splits["test"])
            inputs = {"model": quantized, "samples": samples, "test": splits["test"], **stage.inputs(value)}
            quantized = attempt.make(stage.function, value, **inputs).artifacts["model"]

    def prune(self, pruning: PruneConfig) -> Candidates:
        """Make a smaller network, which passes the gates of the main line, and its own candidates.

        It goes through the passes that helped the whole one, and is quantized too.
        """
        config, reference, whole = self.config, self.reference, self.reference.base
        own: Candidates = ()
        with self.line.attempt(Candidate(pruning.name, whole.name, pruning.name)) as attempt:
            pruned = attempt.stage(
                prune,
                pruning,
                network=reference.network,
                signature=reference.signature,
                golden=reference.golden,
                splits=reference.splits,
                training=config.train.hyperparameters,
            ).artifacts
            predictions, signature, golden = pruned["predictions"], reference.signature, pruned["golden"]
            scored = attempt.stage(evaluate, config.evaluate, predictions=predictions, signature=signature).facts
            attempt.update(golden=golden, temperature=scored.temperature)
            base = export_network(attempt, config, pruned["network"], signature, golden, reference.splits["test"])
            base = replace(base, golden=golden, unpruned=whole.exported, temperature=scored.temperature)
            check_accuracy(attempt, config, reference, base, base.exported)
            search, passed = Search.start(attempt, config, reference, base).optimize(self.base.passes)
            own = (*passed, *search.quantize())
        return (attempt.made, *own)

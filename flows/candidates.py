"""The candidates of a run: what passes, recipes and pruning make of a network, each behind its gates."""

from collections.abc import Mapping
from dataclasses import replace

from configs.schema import FROM_IMAGES, NORMALIZED, REFERENCE, PipelineConfig
from flows.composition import Base, Reference, Shipped
from flows.stage import Line
from flows.time_budget import TimeBudget
from gauntlet.bundle.evidence import temperature
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET
from gauntlet.runtime.operator_libraries import operator_libraries
from tasks.accuracy import accuracy
from tasks.calibrate import calibrate
from tasks.duel import duel
from tasks.evaluate import evaluate
from tasks.export import export, files_of
from tasks.normalize import normalize
from tasks.numerics import numerics
from tasks.optimize import OptimizeConfig, OptimizeFacts, optimize, user_files
from tasks.portability import portability
from tasks.preprocess import preprocess
from tasks.prune import PruneConfig, prune
from tasks.quantize import QuantizeConfig, methods_of, quantize
from tasks.repair import REPAIRED, repair
from tasks.structure import structure


def export_network(
    line: Line, config: PipelineConfig, network: Artifact, signature: Signature, golden: Artifact
) -> Base:
    """Export and normalize a network, and prove that the file computes what the network does."""
    files = (*files_of(config.export), *operator_libraries())
    exported = line.stage(export, config.export, model=network, signature=signature, golden=golden, files=files)
    brought = config.export.kind == "as-is"  # an exporter's opset was chosen in the configuration
    normalized = line.stage(
        normalize,
        config.normalize,
        model=exported.artifacts["model"],
        golden=golden,
        limits=config.numerics,
        max_opset=config.structure.max_opset if brought else PER_CHANNEL_OPSET,
        max_ir_version=config.structure.max_ir_version,
        files=operator_libraries(),
    )
    model = normalized.artifacts["normalized"]
    base = Base(line.name or REFERENCE, exported.artifacts["model"], model, normalized.facts)
    line.stage(structure, config.structure, model=model)
    line.stage(numerics, base.facts.limits(config.numerics), model=model, golden=golden)
    return base


def add_normalized(line: Line, config: PipelineConfig, reference: Reference) -> None:
    """Make a candidate of the normalized model, where the runtime makes another graph of it than of the reference."""
    if not reference.base.facts.same_graph:
        model = reference.base.model
        with line.candidate(NORMALIZED) as candidate:
            line.run.update(NORMALIZED, artifact=model, size_bytes=model.size_bytes)
            check_accuracy(candidate, config, reference, reference.base, model)


def optimize_base(
    line: Line,
    config: PipelineConfig,
    reference: Reference,
    base: Base,
    passes: tuple[OptimizeConfig, ...],
    time: TimeBudget,
) -> Base:
    """Make a candidate with every graph pass; return the base with what the accepted passes made of it."""
    accepted: dict[str, Report[OptimizeFacts]] = {}
    with line.together() as lines:
        for place, graph_pass in enumerate(passes):
            lines.branch(optimize_with, config, reference, base, graph_pass, accepted, place, time)
    return base.after([(one, accepted[one.name]) for one in passes if one.name in accepted])


def optimize_with(
    line: Line,
    config: PipelineConfig,
    reference: Reference,
    base: Base,
    graph_pass: OptimizeConfig,
    accepted: dict[str, Report[OptimizeFacts]],
    place: int,
    time: TimeBudget,
) -> None:
    """Make a candidate with a graph pass, run its gates, and add it to those that passed them."""
    golden, limits = base.golden or reference.golden, base.facts.limits(config.numerics)
    with line.candidate(base.candidate(graph_pass.name), parent=base.name) as candidate:
        time.require_time_for_pass(place)
        optimized = candidate.stage(
            optimize,
            graph_pass,
            model=base.model,
            golden=golden,
            limits=limits,
            files=(*user_files(graph_pass), *operator_libraries()),
            budget_s=time.for_passes,
        )
        model = optimized.artifacts["model"]
        candidate.stage(structure, config.structure, model=model)
        candidate.stage(numerics, limits, model=model, golden=golden)
        check_accuracy(candidate, config, reference, base, model)
        accepted[graph_pass.name] = optimized


def quantize_base(line: Line, config: PipelineConfig, reference: Reference, base: Base, time: TimeBudget) -> None:
    """Make a candidate with every recipe, from one calibration."""
    base = replace(base, calibrated=calibrate_base(line, config, reference, base))
    for place, recipe in enumerate(base.recipes(config)):
        line.branch(quantize_with, config, reference, base, recipe, place, time)


def quantize_with(
    line: Line,
    config: PipelineConfig,
    reference: Reference,
    base: Base,
    recipe: QuantizeConfig,
    place: int,
    time: TimeBudget,
) -> None:
    """Make a candidate with a recipe, run its gates, and repair it if it loses too much accuracy."""
    name, (parent, model) = base.candidate(recipe.name), base.source(recipe)
    with line.candidate(name, parent=parent) as candidate:
        base.facts.require_float32()
        prepared, ranges = base.calibrated.get("prepared"), base.calibrated.get("ranges")
        with time.recipe(place):
            quantized = candidate.stage(quantize, recipe, model=model, prepared=prepared, ranges=ranges)
            prove_quantized(candidate, config, reference, base, quantized.artifacts["model"])
    images = reference.splits.get("validation", reference.splits.get("calibration"))
    lost = images and base.calibrated and line.rejected_by(accuracy, name)
    if images and lost and config.repair.can_repair(recipe, base.recipes(config)):
        with line.candidate(name + REPAIRED, parent=name) as fallback:
            time.require_time_for_repair(config.repair.budget_s)
            repaired = fallback.stage(
                repair,
                config.repair,
                recipe=recipe,
                accuracy=config.accuracy,
                model=base.model,
                quantized=quantized.artifacts["model"],
                prepared=base.calibrated["prepared"],
                ranges=base.calibrated["ranges"],
                images=images,
                test=reference.splits["test"],
                whole=base.unpruned,
            )
            prove_quantized(fallback, config, reference, base, repaired.artifacts["model"])


def check_accuracy(candidate: Line, config: PipelineConfig, reference: Reference, base: Base, model: Artifact) -> None:
    """Compare a candidate's accuracy with FP32's, and its noise with the outputs of its own network, if pruned."""
    candidate.stage(
        accuracy,
        config.accuracy,
        model=model,
        golden=reference.golden,
        test=reference.splits["test"],
        parent_golden=base.golden,
        temperature=base.temperature,
        min_recall=config.evaluate.min_recall,
        min_precision=config.evaluate.min_precision,
        max_ece=config.evaluate.max_ece,
    )


def calibrate_base(line: Line, config: PipelineConfig, reference: Reference, base: Base) -> Mapping[str, Artifact]:
    """Find the activation ranges that static recipes need; where it fails, these recipes fail one by one."""
    methods, calibration = methods_of(base.recipes(config)), reference.splits.get("calibration")
    calibrated: Mapping[str, Artifact] = {}
    if methods and (calibration or config.calibrate.reader) and base.facts.precision == "float32":
        with line.continue_on_failure():
            calibrated = line.stage(
                calibrate,
                config.calibrate,
                model=base.model,
                calibration=calibration,
                test=reference.splits["test"],
                methods=methods,
                files=config.calibrate.files(),
            ).artifacts
    return calibrated


def prove_quantized(
    candidate: Line, config: PipelineConfig, reference: Reference, base: Base, quantized: Artifact
) -> None:
    """Run the gates of a quantized model."""
    test = reference.splits["test"]
    candidate.stage(structure, config.structure, model=quantized)
    check_accuracy(candidate, config, reference, base, quantized)
    candidate.stage(
        portability,
        config.portability,
        model=quantized,
        samples=reference.splits.get("calibration", test),
        test=test,
        emulators=config.portability.emulators(),
    )


def prune_network(line: Line, config: PipelineConfig, reference: Reference, passes: tuple[OptimizeConfig, ...]) -> None:
    """Make a smaller network with every pruning; it goes through the `passes` that helped the whole one."""
    for pruning in config.prune:
        line.branch(prune_with, config, reference, pruning, passes)


def prune_with(
    line: Line, config: PipelineConfig, reference: Reference, pruning: PruneConfig, passes: tuple[OptimizeConfig, ...]
) -> None:
    """Make a smaller network; it passes the gates of the main line, and is quantized too."""
    with line.candidate(pruning.name) as candidate:
        pruned = candidate.stage(
            prune,
            pruning,
            network=reference.network,
            signature=reference.signature,
            golden=reference.golden,
            splits=reference.splits,
        ).artifacts
        predictions, signature = pruned["predictions"], reference.signature
        scored = candidate.stage(evaluate, config.evaluate, predictions=predictions, signature=signature).facts
        own, whole = pruned["golden"], reference.base.exported
        base = export_network(candidate, config, pruned["network"], signature, own)
        base = replace(base, golden=own, unpruned=whole, temperature=scored.temperature)
        check_accuracy(candidate, config, reference, base, base.exported)
        time = TimeBudget(config.quantize_budget_s)
        base = optimize_base(candidate, config, reference, base, passes, time)
        quantize_base(candidate, config, reference, base, time)


def move_preprocessing(
    line: Line, config: PipelineConfig, reference: Reference, shipped: Shipped, batch: int
) -> Shipped:
    """Make a candidate of the winner with its preprocessing in the graph; return what of both is to be packaged.

    `batch` is the batch size that decided the selection. Where the candidate fails a gate, or is not proven faster from
    image to output, the winner stays.
    """
    final, name, packaged = shipped.final, shipped.final.winner + FROM_IMAGES, shipped
    with line.candidate(name, parent=final.winner) as candidate:
        if final.target not in [session.name for session in config.benchmark.all_sessions if session.env is None]:
            raise GateFailed(f"the preprocessing stays outside of the graph: the winner runs on {final.target}")
        limits = reference.base.facts.limits(config.numerics)
        made = candidate.stage(
            preprocess,
            config.preprocess,
            model=shipped.model,
            golden=shipped.golden,
            test=shipped.test,
            limits=limits,
        ).artifacts
        images = replace(shipped, model=made["model"], golden=made["golden"], test=made["test"])
        candidate.stage(structure, config.structure, model=images.model)
        own = line.run.own_goldens.get(final.winner)
        base = replace(reference.base, golden=own, temperature=temperature(line.run.report()))
        of_images = replace(reference, golden=images.golden, splits={**reference.splits, "test": images.test})
        check_accuracy(candidate, config, of_images, base, images.model)
        raced = candidate.measure(
            duel,
            config.race,
            select=config.select,
            batch=batch,
            final=final,
            candidate=name,
            models={REFERENCE: reference.base.exported, final.winner: shipped.model, name: images.model},
            golden=images.golden,
            budget=config.budget,
        ).facts
        if raced.won:
            packaged = replace(images, final=raced.final)
    return packaged

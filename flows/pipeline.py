"""The gauntlet: the diagram of the README, as code. Every `line.stage` runs a stage's work, then its gate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prefect import flow

from configs.required_packages import require_packages
from configs.schema import NORMALIZED, REFERENCE, PipelineConfig
from flows.recording import recording
from flows.stage import Line
from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET
from gauntlet.runtime.operator_libraries import operator_libraries, with_operator_libraries
from tasks.accuracy import accuracy
from tasks.benchmark import benchmark
from tasks.calibrate import calibrate
from tasks.confirm import confirm
from tasks.data import data
from tasks.evaluate import evaluate
from tasks.explain import explain
from tasks.export import export, files_of
from tasks.loadgen import loadgen
from tasks.normalize import normalize
from tasks.normalize.config import NormalizeFacts
from tasks.numerics import numerics
from tasks.optimize import optimize, user_files
from tasks.package import package
from tasks.portability import portability
from tasks.prune import prune
from tasks.quantize import QuantizeConfig, methods_of, quantize
from tasks.repair import REPAIRED, repair
from tasks.select import select
from tasks.structure import structure
from tasks.train import train


@dataclass(frozen=True)
class Base:
    """An exported network; its normalized file is what passes and recipes start from."""

    name: str
    exported: Artifact  # as the exporter wrote it, or as it was brought
    model: Artifact  # normalized
    facts: NormalizeFacts
    golden: Artifact | None = None  # a pruned network's own outputs
    unpruned: Artifact | None = None


@dataclass(frozen=True)
class Reference:
    """The model that every candidate is made from and compared with."""

    splits: Mapping[str, Artifact]
    network: Artifact  # in its framework's format
    signature: Signature
    golden: Artifact  # the network's outputs
    base: Base


@flow(name="gauntlet", flow_run_name="{config.name}", persist_result=False, log_prints=False)
def pipeline(config: PipelineConfig, *, fresh: bool = False) -> str:
    """Run a model through every stage; return the run's id. A gate that fails raises `GateFailed`.

    Args:
        config: everything about the run.
        fresh: repeat everything; use no results of earlier runs.
    """
    require_packages(config)
    config.benchmark.described()  # a session that this machine cannot open is refused before anything runs
    with with_operator_libraries(config.operator_libraries), recording(config, fresh=fresh) as run:
        line = Line(run)
        reference = make_reference(line, config)
        add_normalized(line, config, reference)
        optimize_reference(line, config, reference)
        quantize_base(line, config, reference, reference.base, config.quantize)
        prune_network(line, config, reference)
        choose_winner(line, config, reference)
    return run.id


def make_reference(line: Line, config: PipelineConfig) -> Reference:
    """Train a network or take a pretrained one, score it, and export it."""
    splits = line.stage(data, config.data, files=config.data.files())
    trained = line.stage(
        train,
        config.train,
        splits=splits.artifacts,
        signature=splits.facts.signature,
        files=(*config.train.files(), *operator_libraries()),
    )
    network, signature, golden = trained.artifacts["model"], trained.facts.signature, trained.artifacts["golden"]
    score = None
    if predictions := trained.artifacts.get("predictions"):  # absent without labels
        score = line.stage(evaluate, config.evaluate, predictions=predictions, signature=signature).facts.accuracy
    base = export_network(line, config, network, signature, golden)
    line.run.add_candidate(REFERENCE, None, model=base.exported, accuracy=score)
    return Reference(splits.artifacts, network, signature, golden, base)


def export_network(
    line: Line, config: PipelineConfig, network: Artifact, signature: Signature, golden: Artifact
) -> Base:
    """Export and normalize a network, and prove that the file computes what the network does."""
    exported = line.stage(
        export,
        config.export,
        model=network,
        signature=signature,
        golden=golden,
        files=(*files_of(config.export), *operator_libraries()),
    )
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
    line.stage(numerics, config.numerics, model=model, golden=golden)
    return base


def add_normalized(line: Line, config: PipelineConfig, reference: Reference) -> None:
    """Make a candidate of the normalized model, where the runtime makes another graph of it than of the reference."""
    if not reference.base.facts.same_graph:
        model = reference.base.model
        with line.candidate(NORMALIZED) as candidate:
            line.run.update(NORMALIZED, artifact=model, size_bytes=model.size_bytes)
            check_accuracy(candidate, config, reference, model)


def optimize_reference(line: Line, config: PipelineConfig, reference: Reference) -> None:
    """Make a candidate of the reference with every graph pass."""
    golden = reference.golden
    for graph_pass in config.optimize:
        with line.candidate(graph_pass.name) as candidate:
            optimized = candidate.stage(
                optimize,
                graph_pass,
                model=reference.base.model,
                golden=golden,
                limits=config.numerics,
                files=(*user_files(graph_pass), *operator_libraries()),
            )
            model = optimized.artifacts["model"]
            candidate.stage(structure, config.structure, model=model)
            candidate.stage(numerics, config.numerics, model=model, golden=golden)
            check_accuracy(candidate, config, reference, model)


def quantize_base(
    line: Line, config: PipelineConfig, reference: Reference, base: Base, recipes: tuple[QuantizeConfig, ...]
) -> None:
    """Make a candidate with every recipe, from one calibration, and repair those that lose too much accuracy."""
    calibrated = calibrate_base(line, config, reference, base, recipes)
    for recipe in recipes:
        name = recipe.name if base.name == REFERENCE else f"{base.name}-{recipe.name}"
        with line.candidate(name, parent=base.name) as candidate:
            base.facts.require_float32()
            prepared, ranges = calibrated.get("prepared"), calibrated.get("ranges")
            quantized = candidate.stage(quantize, recipe, model=base.model, prepared=prepared, ranges=ranges)
            prove_quantized(candidate, config, reference, base, quantized.artifacts["model"])
        images = reference.splits.get("validation", reference.splits.get("calibration"))
        if calibrated and images and config.repair.can_repair(recipe, recipes) and candidate.rejected_by(accuracy):
            with line.candidate(name + REPAIRED, parent=name) as fallback:
                repaired = fallback.stage(
                    repair,
                    config.repair,
                    recipe=recipe,
                    accuracy=config.accuracy,
                    model=base.model,
                    quantized=quantized.artifacts["model"],
                    prepared=calibrated["prepared"],
                    ranges=calibrated["ranges"],
                    images=images,
                    test=reference.splits["test"],
                    whole=base.unpruned,
                )
                prove_quantized(fallback, config, reference, base, repaired.artifacts["model"])


def check_accuracy(
    candidate: Line, config: PipelineConfig, reference: Reference, model: Artifact, own: Artifact | None = None
) -> None:
    """Compare a candidate's accuracy with FP32's, and its noise with the outputs of its own network, if pruned."""
    candidate.stage(
        accuracy,
        config.accuracy,
        model=model,
        golden=reference.golden,
        test=reference.splits["test"],
        parent_golden=own,
        min_recall=config.evaluate.min_recall,
        min_precision=config.evaluate.min_precision,
    )


def calibrate_base(
    line: Line, config: PipelineConfig, reference: Reference, base: Base, recipes: tuple[QuantizeConfig, ...]
) -> Mapping[str, Artifact]:
    """Find the activation ranges that static recipes need; where it fails, these recipes fail one by one."""
    methods, calibration = methods_of(recipes), reference.splits.get("calibration")
    calibrated: Mapping[str, Artifact] = {}
    if methods and calibration and base.facts.precision == "float32":
        with line.continue_on_failure():
            calibrated = line.stage(
                calibrate,
                config.calibrate,
                model=base.model,
                calibration=calibration,
                test=reference.splits["test"],
                methods=methods,
            ).artifacts
    return calibrated


def prove_quantized(
    candidate: Line, config: PipelineConfig, reference: Reference, base: Base, quantized: Artifact
) -> None:
    """Run the gates of a quantized model."""
    test = reference.splits["test"]
    candidate.stage(structure, config.structure, model=quantized)
    check_accuracy(candidate, config, reference, quantized, base.golden)
    candidate.stage(
        portability,
        config.portability,
        model=quantized,
        samples=reference.splits.get("calibration", test),
        test=test,
        emulators=config.portability.emulators(),
    )


def prune_network(line: Line, config: PipelineConfig, reference: Reference) -> None:
    """Make a smaller network with every pruning; each passes the gates of the main line, and is quantized too."""
    for pruning in config.prune:
        with line.candidate(pruning.name) as candidate:
            pruned = candidate.stage(
                prune,
                pruning,
                network=reference.network,
                signature=reference.signature,
                golden=reference.golden,
                splits=reference.splits,
            ).artifacts
            candidate.stage(evaluate, config.evaluate, predictions=pruned["predictions"], signature=reference.signature)
            base = export_network(candidate, config, pruned["network"], reference.signature, pruned["golden"])
            check_accuracy(candidate, config, reference, base.exported, pruned["golden"])
            base = replace(base, golden=pruned["golden"], unpruned=reference.base.exported)
            quantize_base(candidate, config, reference, base, config.pruned_recipes)


def choose_winner(line: Line, config: PipelineConfig, reference: Reference) -> None:
    """Race the candidates that passed every gate, explain the slow ones, select, confirm and package the winner."""
    run, golden, test = line.run, reference.golden, reference.splits["test"]
    race = line.measure(
        benchmark,
        config.race,
        models=run.accepted_models,
        golden=golden,
        test=test,
        limits=config.accuracy,
        own_goldens=run.own_goldens,
        framework_model=reference.network,
    ).facts
    reasons = line.stage(
        explain,
        config.benchmark,
        models=run.accepted_models,
        race=race,
        golden=golden,
        batch=config.select.batch,
        min_speedup=config.select.min_speedup,
    ).facts
    selection = line.stage(
        select, config.select, race=race, explanations=reasons, fidelities=run.fidelities, budget=config.budget
    ).facts
    final = line.measure(
        confirm,
        config.race,
        select=config.select,
        selection=selection,
        models=run.accepted_models,
        golden=golden,
        budget=config.budget,
    ).facts
    winner = run.accepted_models[final.winner]
    if config.loadgen:
        target = config.benchmark.target_named(final.target)
        line.measure(loadgen, config.loadgen, model=winner, test=test, golden=golden, target=target)
    line.stage(package, config.package, report=run.report(), final=final, model=winner, golden=golden, test=test)

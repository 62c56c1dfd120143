"""The gauntlet: the diagram of the README, as code. Every line that calls a stage runs its work, then its gate."""

from collections.abc import Mapping

from prefect import flow

from configs.packages import require_packages
from configs.schema import REFERENCE, PipelineConfig
from flows.run import CURRENT, candidate, recording, tolerated
from flows.stage import stage
from tasks.accuracy import check_accuracy
from tasks.artifact import Artifact
from tasks.benchmark import benchmark as race
from tasks.calibrate import calibrate as find_ranges
from tasks.data import prepare
from tasks.evaluate import evaluate as score
from tasks.explain import explain as find_reasons
from tasks.export import export as to_onnx
from tasks.export import files_of as exporters_files
from tasks.loadgen import loadgen as ask_for_load
from tasks.optimize import optimize as apply_pass
from tasks.optimize import users_files
from tasks.portability import check_portability
from tasks.prune import prune as cut
from tasks.quantize import QuantizeConfig, methods_of
from tasks.quantize import quantize as apply_recipe
from tasks.repair import REPAIRED
from tasks.repair import repair as mend
from tasks.runtime.libraries import operator_libraries, registered
from tasks.select import select as choose
from tasks.signature import Signature
from tasks.train import train as fit
from tasks.validate.numerics import check_numerics
from tasks.validate.structure import check_structure

data = stage("data", prepare)
train = stage("train", fit)
evaluate = stage("evaluate", score)
export = stage("export", to_onnx)
structure = stage("structure", check_structure)
numerics = stage("numerics", check_numerics)
optimize = stage("optimize", apply_pass)
calibrate = stage("calibrate", find_ranges)
quantize = stage("quantize", apply_recipe)
prune = stage("prune", cut)
accuracy = stage("accuracy", check_accuracy)
portability = stage("portability", check_portability)
repair = stage("repair", mend)
benchmark = stage("benchmark", race, cached=False, alone=True)
explain = stage("explain", find_reasons, cached=False)
select = stage("select", choose, cached=False)
loadgen = stage("loadgen", ask_for_load, cached=False, alone=True)


@flow(name="gauntlet", flow_run_name="{config.name}", persist_result=False, log_prints=False)
def pipeline(config: PipelineConfig) -> str:
    """Run a model through every stage; return the run's id. A gate that says no raises `GateFailed`."""
    require_packages(config)
    config.benchmark.described()  # a session that this machine cannot have is refused before anything runs
    with registered(config.operator_libraries), recording(config) as run:
        splits = data(config.data, files=config.data.files())
        source = train(
            config.train,
            splits=splits.artifacts,
            signature=splits.facts.signature,
            files=(*config.train.files(), *operator_libraries()),
        )
        signature, golden = source.facts.signature, source.artifacts["golden"]
        test = splits.artifacts["test"]
        truth = source.artifacts.get("predictions")  # there is none without labels
        scored = evaluate(config.evaluate, predictions=truth, labels=signature.labels).facts if truth else None
        model = exported(config, source.artifacts["model"], signature, golden)
        run.add_candidate(
            REFERENCE, None, artifact=model, size_bytes=model.size_bytes, accuracy=scored and scored.accuracy
        )

        for graph_pass in config.optimize:
            with candidate(graph_pass.name):
                optimized = optimize(
                    graph_pass,
                    model=model,
                    golden=golden,
                    limits=config.numerics,
                    files=(*users_files(graph_pass), *operator_libraries()),
                ).artifacts["model"]
                structure(config.structure, model=optimized)
                numerics(config.numerics, model=optimized, golden=golden)
                accuracy(config.accuracy, model=optimized, golden=golden, test=test)

        quantized(config, config.quantize, model, golden, splits.artifacts)

        for pruning in config.prune:
            with candidate(pruning.name):
                pruned = prune(
                    pruning,
                    network=source.artifacts["model"],
                    signature=signature,
                    golden=golden,
                    splits=splits.artifacts,
                ).artifacts
                own = pruned["golden"]
                evaluate(config.evaluate, predictions=pruned["predictions"], labels=signature.labels)
                smaller = exported(config, pruned["network"], signature, own)
                accuracy(config.accuracy, model=smaller, golden=golden, test=test, source=own)
                recipes = config.pruned_recipes
                quantized(
                    config, recipes, smaller, golden, splits.artifacts, parent=pruning.name, source=own, whole=model
                )

        measured = benchmark(
            config.benchmark,
            models=run.survivors,
            golden=golden,
            test=test,
            limits=config.accuracy,
            source=source.artifacts["model"],
        )
        why = explain(
            config.benchmark,
            models=run.survivors,
            race=measured.facts,
            golden=golden,
            batch=config.select.batch,
            min_speedup=config.select.min_speedup,
        )
        choice = select(config.select, race=measured.facts, why=why.facts, exactness=run.exactness)
        run.choose(measured.facts, choice.facts)
        if config.loadgen:
            winner, place = run.survivors[choice.facts.winner], config.benchmark.place(choice.facts.target)
            loadgen(config.loadgen, model=winner, test=test, golden=golden, target=place)
    return run.id


def exported(config: PipelineConfig, network: Artifact, signature: Signature, golden: Artifact) -> Artifact:
    """Export a network, and prove that the file computes what the network did."""
    files = (*exporters_files(config.export), *operator_libraries())
    model = export(config.export, model=network, signature=signature, golden=golden, files=files).artifacts["model"]
    structure(config.structure, model=model)
    numerics(config.numerics, model=model, golden=golden)
    return model


def quantized(
    config: PipelineConfig,
    recipes: tuple[QuantizeConfig, ...],
    model: Artifact,
    golden: Artifact,
    splits: Mapping[str, Artifact],
    *,
    parent: str = REFERENCE,
    source: Artifact | None = None,
    whole: Artifact | None = None,
) -> None:
    """Make a candidate of a model with every recipe, from one calibration, and repair those that lose too much.

    `golden` are the FP32 answers. Where the model was pruned, `source` are its own, and `whole` is the one before.
    """
    run, prefix = CURRENT.get(), "" if parent == REFERENCE else f"{parent}-"
    test, calibration = splits["test"], splits.get("calibration")
    validation = splits.get("validation", calibration)
    calibrated: dict[str, Artifact] = {}
    methods = methods_of(recipes)
    if methods and calibration:
        with tolerated():  # without ranges, the static recipes drop out one by one; the others need none
            calibrated = calibrate(
                config.calibrate, model=model, calibration=calibration, test=test, methods=methods
            ).artifacts

    def prove(made: Artifact) -> None:
        structure(config.structure, model=made)
        accuracy(config.accuracy, model=made, golden=golden, test=test, source=source)
        portability(
            config.portability,
            model=made,
            samples=calibration or test,
            test=test,
            emulators=config.portability.emulators(),
        )

    for recipe in recipes:
        name = prefix + recipe.name
        with candidate(name, parent):
            made = quantize(
                recipe, model=model, prepared=calibrated.get("prepared"), ranges=calibrated.get("ranges")
            ).artifacts["model"]
            prove(made)
        if calibrated and validation and config.repair.takes(recipe) and run.rejected_by("accuracy", name):
            with candidate(name + REPAIRED, parent=name):
                prove(
                    repair(
                        config.repair,
                        recipe=recipe,
                        accuracy=config.accuracy,
                        model=model,
                        quantized=made,
                        prepared=calibrated["prepared"],
                        ranges=calibrated["ranges"],
                        images=validation,
                        test=test,
                        whole=whole,
                    ).artifacts["model"]
                )

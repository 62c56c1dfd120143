"""The gauntlet: the diagram of the README, as code. Every line that calls a stage runs its work, then its gate."""

from prefect import flow

from configs.packages import require_packages
from configs.schema import REFERENCE, PipelineConfig
from flows.run import candidate, recording, tolerated
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
from tasks.quantize import methods_of
from tasks.quantize import quantize as apply_recipe
from tasks.repair import REPAIRED
from tasks.repair import repair as mend
from tasks.runtime.libraries import operator_libraries, registered
from tasks.select import select as choose
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
    with registered(config.operator_libraries), recording(config) as run:
        splits = data(config.data, files=config.data.files())
        source = train(
            config.train,
            splits=splits.artifacts,
            signature=splits.facts.signature,
            files=(*config.train.files(), *operator_libraries()),
        )
        signature, golden = source.facts.signature, source.artifacts["golden"]
        test, calibration = splits.artifacts["test"], splits.artifacts.get("calibration")
        validation = splits.artifacts.get("validation", calibration)
        truth = source.artifacts.get("predictions")  # there is none without labels
        scored = evaluate(config.evaluate, predictions=truth, labels=signature.labels).facts if truth else None
        model = export(
            config.export,
            model=source.artifacts["model"],
            signature=signature,
            golden=golden,
            files=(*exporters_files(config.export), *operator_libraries()),
        ).artifacts["model"]
        structure(config.structure, model=model)
        numerics(config.numerics, model=model, golden=golden)
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

        calibrated: dict[str, Artifact] = {}
        methods = methods_of(config.quantize)
        if methods and calibration:
            with tolerated():  # without ranges, the static recipes drop out one by one; the others need none
                calibrated = calibrate(
                    config.calibrate, model=model, calibration=calibration, test=test, methods=methods
                ).artifacts
        for recipe in config.quantize:
            with candidate(recipe.name):
                quantized = quantize(
                    recipe, model=model, prepared=calibrated.get("prepared"), ranges=calibrated.get("ranges")
                ).artifacts["model"]
                structure(config.structure, model=quantized)
                accuracy(config.accuracy, model=quantized, golden=golden, test=test)
                portability(
                    config.portability,
                    model=quantized,
                    samples=calibration or test,
                    test=test,
                    emulators=config.portability.emulators(),
                )
            if calibrated and validation and config.repair.takes(recipe) and run.rejected_by("accuracy", recipe.name):
                with candidate(recipe.name + REPAIRED, parent=recipe.name):
                    repaired = repair(
                        config.repair,
                        recipe=recipe,
                        accuracy=config.accuracy,
                        model=model,
                        prepared=calibrated["prepared"],
                        ranges=calibrated["ranges"],
                        images=validation,
                    ).artifacts["model"]
                    structure(config.structure, model=repaired)
                    accuracy(config.accuracy, model=repaired, golden=golden, test=test)
                    portability(
                        config.portability,
                        model=repaired,
                        samples=calibration or test,
                        test=test,
                        emulators=config.portability.emulators(),
                    )

        measured = benchmark(config.benchmark, models=run.survivors, golden=golden)
        why = explain(config.benchmark, models=run.survivors, race=measured.facts, golden=golden)
        choice = select(config.select, race=measured.facts, why=why.facts)
        run.choose(measured.facts, choice.facts)
        if config.loadgen:
            loadgen(config.loadgen, model=run.survivors[choice.facts.winner], test=test, golden=golden)
    return run.id

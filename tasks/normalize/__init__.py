"""Put a model into the form that recipes and passes rely on, one step at a time, each proven to keep the outputs."""

from pathlib import Path

import numpy as np
import onnx
from onnx.external_data_helper import convert_model_to_external_data, load_external_data_for_model

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.output_comparison import BatchNoise, Tolerances, batch_noise
from gauntlet.onnx_model.graph import opset_versions, required_inputs, tensor_shape, without_weights
from gauntlet.onnx_model.model_file import copy_model, is_large_file, read_graph, read_model, write_model
from gauntlet.onnx_model.normalization.fixed_inputs import find_input, input_array
from gauntlet.onnx_model.recognition import control_flow_of, precision_of
from gauntlet.runtime.graph_fingerprint import graph_fingerprint, optimized_graph_fingerprint
from gauntlet.runtime.session import open_session, supported_ir_version, supported_opset
from tasks.normalize.config import NormalizeConfig, NormalizeFacts, StepFacts
from tasks.normalize.normalizer import Proof, apply_steps
from tasks.normalize.steps import STEPS, Setting

SAMPLES = 8
"""Real and random samples, of each so many, to compare."""
INLINE_BYTES = 100_000
"""Smaller tensors stay in the graph's file while the steps run: shapes, and what they may compute with."""


def normalize(
    config: NormalizeConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    golden: Artifact,
    limits: Tolerances | None = None,
    max_opset: int | None = None,
    max_ir_version: int | None = None,
    files: tuple[object, ...] = (),
) -> Report[NormalizeFacts]:
    """Normalize a model; the artifact is `normalized`, which is the model itself where no step applies.

    Every step keeps the outputs for the golden inputs within a quarter of `limits`, and a valid model valid; otherwise
    it is undone. `max_opset` and `max_ir_version` are the newest that the runtimes in use support. `files` are operator
    libraries; an argument so that their content is part of the cache key.

    Raises:
        ConfigError: when an input to fix does not exist, or its value does not fit.
    """
    path, reference = workspace.path(model), Golden.load(workspace.path(golden))
    source = read_graph(path)
    noise = _batch_noise(path, source, reference, limits := limits or Tolerances())
    axes = {value.name: len(tensor_shape(value) or ()) for value in required_inputs(source.graph)}
    setting = Setting(
        config=config,
        signature=Signature.find(source) or signature_from_graph(source),
        max_opset=max_opset or supported_opset(),
        max_ir_version=max_ir_version or supported_ir_version(),
        one_sample_per_call=any(n in axes and array.ndim > axes[n] for n, array in reference.real.inputs.items()),
    )
    planned = apply_steps(without_weights(source, INLINE_BYTES), setting, STEPS)
    if not planned.changed:  # usual for exports: nothing is written, and no session opened
        return _report(config, source, source, planned.steps, model, reference, noise)
    try:
        limits = limits if noise is None else noise.widen(limits)
        proof = Proof.from_model(path, workspace.folder, reference, limits, SAMPLES)
    except StageError as error:  # the gates `structure` and `numerics` say the same of it
        reason = f"nothing can be proven, because the file does not run on the golden inputs: {one_line(error)}"
        steps = tuple(StepFacts(step=name, outcome="undone", reason=reason) for name in STEPS)
        return _report(config, source, source, steps, model, reference, noise)
    working = workspace.folder / "model.onnx"
    normalized = apply_steps(_without_large_weights(path, working), setting, STEPS, proof.failure)
    if not normalized.changed:
        return _report(config, source, source, normalized.steps, model, reference, noise)
    if not is_large_file(working):  # all weights are then in one file
        load_external_data_for_model(normalized.proto, str(working.parent))
    kept = workspace.store_file(working, *write_model(normalized.proto, working))
    report = _report(config, source, normalized.proto, normalized.steps, kept, reference, noise)
    both = (source, path), (normalized.proto, workspace.path(kept))
    same = len({graph_fingerprint(proto, weights=False) for proto, _ in both}) == 1  # they differ in names alone
    same = same or len({optimized_graph_fingerprint(file) for _, file in both}) == 1
    checks = (*report.checks, *_source_check(proof))
    return report.replace(facts=report.facts.replace(same_graph=same), checks=checks)


def _batch_noise(path: Path, source: onnx.ModelProto, golden: Golden, limits: Tolerances) -> BatchNoise | None:
    """Return the noise between batch sizes of a model that is not float32, if it runs on the golden inputs."""
    if precision_of(source)[0] == "float32":
        return None
    try:
        return batch_noise(limits, open_session(path), golden.cases, Signature.find(source))
    except StageError:  # the gates `structure` and `numerics` say the same of it
        return None


def _without_large_weights(path: Path, target: Path) -> onnx.ModelProto:
    """Copy the model to `target` and its large weights beside it; return the graph, without them."""
    if is_large_file(path):
        copy_model(path, target)
        return read_graph(target)
    proto, location = read_model(path), f"{target.name}.data"
    target.with_name(location).unlink(missing_ok=True)
    convert_model_to_external_data(proto, location=location, size_threshold=INLINE_BYTES)
    onnx.save(proto, target)
    return proto


def _report(
    config: NormalizeConfig,
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    steps: tuple[StepFacts, ...],
    kept: Artifact,
    golden: Golden,
    noise: BatchNoise | None,
) -> Report[NormalizeFacts]:
    precision, how = precision_of(after)
    facts = NormalizeFacts(
        changed=any(step.outcome == "applied" for step in steps),
        steps=steps,
        opset_before=opset_versions(before).get("ai.onnx", 0),
        opset_after=opset_versions(after).get("ai.onnx", 0),
        ir_version_before=before.ir_version,
        ir_version_after=after.ir_version,
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        precision=precision,
        precision_reason=how,
        batch_noise=noise,
        control_flow=control_flow_of(after),
    )
    checks = _fixed_inputs_check(config, before, golden, steps)
    return Report(facts=facts, checks=checks, artifacts={"normalized": kept})


def _fixed_inputs_check(
    config: NormalizeConfig, source: onnx.ModelProto, golden: Golden, steps: tuple[StepFacts, ...]
) -> tuple[Check, ...]:
    """Return the check that inputs which the user asked to fix are fixed."""
    if not config.fix_inputs:
        return ()
    step = next(step for step in steps if step.step == "fix_inputs")
    left = 0 if step.outcome == "applied" else len(config.fix_inputs)
    check = Check(name="normalize.fix_inputs", value=left, op="==", limit=0, unit="inputs not fixed")
    for name, value in config.fix_inputs.items():
        fixed = input_array(find_input(source.graph, name), value)
        for title, case in golden.cases.items():
            samples = case.inputs.get(name, ())  # one that has a default may be missing
            other = sum(not np.array_equal(np.ravel(sample), np.ravel(fixed)) for sample in samples)
            if other:
                detail = f"{other} of {len(samples)} {title} samples have another value than {value} for '{name}'"
                return (check.explained(detail, f"give samples with {name}={value}, or do not fix it"),)
    return (check.explained(step.reason, "remove the input from normalize.fix_inputs"),)


def _source_check(proof: Proof) -> tuple[Check, ...]:
    """Return a warning when only the normalized file is valid ONNX; where nothing changed, `structure` judges it."""
    if not proof.checker_error:
        return ()
    detail = f"the file as it came is not valid ONNX: {proof.checker_error}"
    remedy = "candidates are made from the normalized file; export the model again to ship it as it came"
    return (Check.of("normalize.source_errors", 1, "==", 0, detail, remedy, severity="warning"),)

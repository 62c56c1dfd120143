"""Models of the frameworks as they are saved: inferred, exported, and proven equal to their source."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import framework_models
import numpy as np
import onnx
import pytest
from framework_models import CLASSES, MADE, SIZE, Brought

from configs.brought_model import InferredConfig, infer_config, is_model
from configs.loader import validated
from configs.schema import PipelineConfig
from flows.cli.run import MODEL_OPTIONS
from flows.cli.validate import print_plan
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from tasks.data import data
from tasks.export import export
from tasks.numerics import numerics
from tasks.structure import structure
from tasks.train import train

QUICK_FORMS = ("torchscript", "sklearn-model")
FORMS = [form if form in QUICK_FORMS else pytest.param(form, marks=pytest.mark.slow) for form in MADE]


def inferred(made: Brought, samples: Path | None = None, **options: Any) -> tuple[InferredConfig, PipelineConfig]:
    """Infer a configuration from a trusted model."""
    shapes = {} if samples else made.shapes
    found = infer_config(made.path, samples, None, shapes, made.parameters, **({"trust": True} | options))
    return found, validated(made.path, found.values)


def exported(config: PipelineConfig, workspace: Callable[..., Workspace]) -> tuple[Workspace, Artifact]:
    """Run the stages from data to numerics, whose gates must pass; return the ONNX model."""
    loaded = data(config.data, workspace())
    trained = train(
        config.train, workspace(), splits=loaded.artifacts, signature=loaded.facts.signature, files=config.train.files()
    )
    golden, signature = trained.artifacts["golden"], trained.facts.signature
    model, out = trained.artifacts["model"], workspace()
    report = export(config.export, out, model=model, signature=signature, golden=golden)
    proven = structure(config.structure, workspace(), model=report.artifacts["model"])
    compared = numerics(config.numerics, workspace(), model=report.artifacts["model"], golden=golden)
    for stage in (trained, report, proven, compared):
        stage.raise_if_blocked()
    return out, report.artifacts["model"]


def axes(value: onnx.ValueInfoProto) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("form", FORMS)
def test_model_is_exported_and_equal_to_its_source_without_a_configuration(
    form: str, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    found, config = inferred(MADE[form](tmp_path))
    assert (config.train.kind, config.data.kind) == (form, "synthetic")
    assert "random" in found.notes["samples"]
    assert any(subject.startswith("output ") and f"{CLASSES}]" in text for subject, text in found.notes.items())
    assert "parameters" in found.notes["model"]
    out, model = exported(config, workspace)
    [image] = onnx.load(out.path(model)).graph.input
    shape = {"sklearn-model": [6], "exported-program": [3, SIZE, SIZE], "torchscript": [3, SIZE, SIZE]}
    assert axes(image) == ["batch", *shape.get(form, [SIZE, SIZE, 3])]


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (framework_models.torchscript_with_states, [("h", "output_1"), ("c", "output_2")]),
        pytest.param(framework_models.keras_with_states, [("state", "state_out")], marks=pytest.mark.slow),
    ],
)
def test_states_of_a_framework_s_model_are_inferred_and_exported(
    make: Callable[[Path], Brought], states: list[tuple[str, str]], tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    found, config = inferred(make(tmp_path))
    assert found.notes["states"].startswith(", ".join(f"{name} -> {output}" for name, output in states))
    assert config.train.states == tuple(states)
    out, model = exported(config, workspace)
    assert Signature.read(onnx.load(out.path(model))).states == tuple(states)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["while", "scan", "cond", "cond of a batch"])
def test_program_with_a_branch_or_a_loop_is_exported_or_refused_with_a_way_out(
    form: str, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    """A branch by the sum of the samples is of one sample, in a batch of one."""
    x = np.random.default_rng(0).standard_normal((40, 5, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=x)
    made = framework_models.program_with_control_flow(tmp_path, form, 1 if form == "cond" else None)
    if form == "cond of a batch":
        with pytest.raises(ConfigError, match=r"depends on the other samples of its batch\. Fix: .*batch of one"):
            inferred(made, tmp_path / "samples.npz")
        return
    out, model = exported(inferred(made, tmp_path / "samples.npz")[1], workspace)
    assert {"Loop", "Scan", "If"} & {node.op_type for node in onnx.load(out.path(model)).graph.node}


@pytest.mark.slow
def test_program_for_a_fixed_batch_keeps_it(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    found, config = inferred(framework_models.exported_program(tmp_path, batch=2))
    assert found.notes["input image"] == f"float32 [2, 3, {SIZE}, {SIZE}]"
    out, model = exported(config, workspace)
    assert axes(onnx.load(out.path(model)).graph.input[0])[0] == 2


def test_samples_are_taken_by_position_when_their_names_are_not_the_models(
    tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    made = framework_models.torchscript(tmp_path)
    images = np.random.default_rng(0).random((40, 3, SIZE, SIZE))  # float64, as NumPy makes them
    np.savez(tmp_path / "samples.npz", picture=images, labels=np.arange(40) % CLASSES)
    found, config = inferred(made, tmp_path / "samples.npz")
    assert found.notes["input picture"] == f"float32 [batch, 3, {SIZE}, {SIZE}]"
    assert found.notes["problem"] == f"classification, {CLASSES} classes"
    assert (config.data.kind, config.data.layout) == ("arrays", "NCHW")
    out, model = exported(config, workspace)
    assert onnx.load(out.path(model)).graph.input[0].name == "picture"


def test_problem_of_a_framework_model_is_inferred_from_its_values(tmp_path: Path) -> None:
    made = framework_models.estimator(tmp_path)
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).standard_normal((40, 6)))
    found, config = inferred(made, tmp_path / "samples.npz")
    assert config.data.task == "classification"
    assert "sum to 1 for each sample" in found.notes["problem"]


@pytest.mark.parametrize("values", [1, 2])
def test_regressor_with_labels_is_judged_by_r2(
    values: int, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    import skops.io
    from sklearn.linear_model import LinearRegression

    inputs = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    labels = (10 * inputs[:, :values]).astype(np.int64)  # whole numbers that no class has twice
    labels = labels[:, 0] if values == 1 else labels
    skops.io.dump(LinearRegression().fit(inputs, labels), tmp_path / "values.skops")
    np.savez(tmp_path / "samples.npz", x=inputs, labels=labels)
    found, config = inferred(Brought(tmp_path / "values.skops"), tmp_path / "samples.npz")
    assert found.notes["problem"] == "regression, as the model says"
    out, model = exported(config, workspace)
    signature = Signature.read(onnx.load(out.path(model)))
    assert (signature.task, signature.primary_output) == ("regression", "variable")


def test_labels_may_be_truth_values(tmp_path: Path) -> None:
    made = framework_models.estimator(tmp_path)
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).random((40, 6)), labels=np.arange(40) % 2 == 0)
    _, config = inferred(made, tmp_path / "samples.npz")
    signature = data(config.data, Workspace(Store(tmp_path / "store"), tmp_path)).facts.signature
    assert (signature.task, signature.labels) == ("classification", ("0", "1"))


def test_labels_may_be_the_names_of_the_model_s_classes(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    inputs, names = np.random.default_rng(0).random((60, 5)), np.array(["cat", "dog", "eel"])[np.arange(60) % 3]
    skops.io.dump(LogisticRegression().fit(inputs, names), tmp_path / "animals.skops")
    np.savez(tmp_path / "samples.npz", x=inputs, labels=names)
    found, config = inferred(Brought(tmp_path / "animals.skops"), tmp_path / "samples.npz")
    assert found.notes["problem"] == "classification, 3 classes"
    out, model = exported(config, workspace)
    signature = Signature.read(onnx.load(out.path(model)))
    assert (signature.labels, signature.primary_output) == (("cat", "dog", "eel"), "probabilities")


def test_file_that_may_run_code_is_refused_until_it_is_trusted_or_stored(tmp_path: Path) -> None:
    made = framework_models.torchscript(tmp_path)
    with pytest.raises(ConfigError, match=r"net\.pt: PyTorch unpickles .*; refused\. Fix: .*--trust with gauntlet run"):
        inferred(made, trust=False)
    store = Store(tmp_path / "store")
    (tmp_path / "accepted.torchscript").write_bytes(made.path.read_bytes())
    store.put(tmp_path / "accepted.torchscript")
    found, _ = inferred(made, trust=False, store=store)
    assert "trust" not in found.values["train"]


def test_estimator_of_untrusted_types_needs_trust(tmp_path: Path) -> None:
    import skops.io
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(n_estimators=2).fit(np.arange(20.0)[:, None], np.arange(20) % 2)
    skops.io.dump(forest, tmp_path / "forest.skops")
    made = Brought(tmp_path / "forest.skops")
    with pytest.raises(ConfigError, match=r"types that are not trusted: sklearn\.tree.*--trust"):
        inferred(made, trust=False)
    assert inferred(made)[1].train.trust


def test_what_the_file_does_not_say_is_asked_for_by_option(tmp_path: Path) -> None:
    assert is_model("nets.py:predict")
    made = framework_models.torchscript(tmp_path)
    with pytest.raises(
        ConfigError, match=r"net\.pt: .*shape of its input 'image'\. Fix: .*--shape image=3x224x224, or"
    ):
        inferred(Brought(made.path))
    with pytest.raises(ConfigError, match="--shape other: unknown input; available: image"):
        inferred(Brought(made.path, made.shapes | {"other": (3,)}))
    with pytest.raises(ConfigError, match=r"the model fails on inputs .*\. Fix: .*--data FILE\.npz"):
        inferred(Brought(made.path, {"image": (5,)}))
    np.savez(tmp_path / "two.npz", a=np.zeros((20, 3)), b=np.zeros((20, 3)))
    with pytest.raises(ConfigError, match="the model takes the inputs image; the data has a, b"):
        inferred(made, tmp_path / "two.npz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net.pt2", "not a .pt2 file, which is a zip archive"),
        ("net.keras", r"\A[^\n]*not a .keras file, which is a zip archive[^\n]*\Z"),
        ("net.torchscript", "not a .torchscript file, which is a zip archive"),
        ("weights.pt", "not a TorchScript program, and weights alone .* torch.export.save .*kind: torch-model"),
        ("weights.safetensors", "not a TorchScript program, and weights alone"),
        ("nets.py:predict", "nets.py: no such file"),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path: Path, name: str, message: str) -> None:
    if not name.startswith("nets"):
        (tmp_path / name).write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=message):
        infer_config(tmp_path / name, None, None, {})


def test_parameters_are_for_functions(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"--parameters is for a JAX function, FILE\.py:FUNCTION"):
        infer_config(tmp_path / "m.onnx", None, None, {}, tmp_path / "p.npz")


def test_export_of_a_program_is_the_one_that_can_read_it(tmp_path: Path) -> None:
    values = {"train": {"kind": "torchscript", "model": "net.pt"}, "export": {"kind": "dynamo"}}
    with pytest.raises(ConfigError, match=r"train\.kind is 'torchscript' \(allowed: torchscript\)"):
        validated(tmp_path, values)
    with pytest.raises(ConfigError, match="prune supports networks of"):
        validated(tmp_path, {"train": values["train"], "prune": [{"kind": "structured"}]})


def test_factory_that_does_not_exist_is_refused_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "empty_nets.py").write_text("")
    train = {"kind": "torch-model", "factory": "empty_nets:build", "code_folder": str(tmp_path), "weights": "w.pt"}
    (tmp_path / "c.yaml").write_text(json.dumps({"name": "x", "data": {"kind": "digits"}, "train": train}))
    options = argparse.Namespace(**dict.fromkeys(MODEL_OPTIONS), config=str(tmp_path / "c.yaml"), set=[])
    with pytest.raises(ConfigError, match=r"c\.yaml: train: empty_nets:build: empty_nets has no function 'build'"):
        print_plan(options)

"""What a configuration may say of pruning; the stage cuts, learns again, keeps its word, and sees no test images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from few_samples import ended_after
from hypothesis import given
from hypothesis import strategies as st
from torch_networks import SIGNATURE, write_network

from configs.loader import load
from configs.schema import PipelineConfig
from frameworks.torch import network as source
from frameworks.torch.brought_network import TorchModel
from frameworks.torch.network_size import compressed_bytes, macs_of, prunable_layers
from frameworks.torch.pruning import Structured, Unstructured
from frameworks.torch.torchscript import TorchScript
from frameworks.torch.training_loop import TorchLoopConfig
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit, read_npz_split, require_labels
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.prune import PruneFacts, prune
from tasks.train import train

Prune = Callable[..., Report[PruneFacts]]
Make = Callable[..., Workspace]
STRUCTURED = {"kind": "structured", "macs_fraction": 0.5, "round_to": 8, "epochs": 2}
UNSTRUCTURED = {"kind": "unstructured", "sparsity": 0.8, "epochs": 2}


def exported(out: Workspace, report: Report[PruneFacts], learned) -> Artifact:
    signature = learned.train.facts.signature
    golden = report.artifacts["golden"]
    made = export(TorchScript(), out, model=report.artifacts["network"], signature=signature, golden=golden)
    return made.artifacts["model"]


def test_structured_pruning_removes_work_and_the_network_still_answers(pruned: Prune, learned, workspace: Make) -> None:
    report, out = pruned(**STRUCTURED), workspace(learned.store)
    report.raise_if_blocked()
    facts = report.facts
    assert facts.macs_share == facts.after.macs / facts.before.macs <= 0.5
    assert facts.after.parameters < 0.6 * facts.before.parameters
    assert len(facts.history) == 2
    network, example = source.load_network(out.path(report.artifacts["network"]))
    assert macs_of(network, [*example.values()]) == facts.after.macs
    assert all(layer.weight.shape[0] % 8 == 0 for _, layer in prunable_layers(network) if layer.weight.ndim == 4)
    golden = Golden.load(out.path(report.artifacts["golden"]))
    assert np.array_equal(source.predict(network, golden.real.inputs["input"]), golden.real.outputs["logits"])
    whole = Golden.load(out.path(learned.golden))
    assert all(np.array_equal(case.inputs["input"], golden.cases[t].inputs["input"]) for t, case in whole.cases.items())
    assert np.mean(golden.test_outputs["logits"].argmax(1) == golden.labels) > 0.7


def test_export_of_a_pruned_network_is_near_its_source_and_not_near_the_whole_one(
    pruned: Prune, learned, workspace: Make
) -> None:
    report, out = pruned(**STRUCTURED), workspace(learned.store)
    model = exported(out, report, learned)
    numerics(NumericsConfig(), out, model=model, golden=report.artifacts["golden"]).raise_if_blocked()
    against_whole = numerics(NumericsConfig(), out, model=model, golden=learned.golden)
    assert "numerics.max_rel_error" in {check.name for check in against_whole.failures}


def test_pruned_model_is_rejected_by_the_accuracy_gate_when_its_budget_ruined_it(
    pruned: Prune, learned, workspace: Make
) -> None:
    report = pruned(kind="structured", macs_fraction=0.02, round_to=1, epochs=1, learning_rate=1e-6)
    report.raise_if_blocked()  # it did what it was asked to
    out = workspace(learned.store)
    told = {"model": exported(out, report, learned), "golden": learned.golden, "test": learned.splits["test"]}
    ruined = accuracy(AccuracyConfig(), out, parent_golden=report.artifacts["golden"], **told)
    assert "accuracy.max_accuracy_drop" in {check.name for check in ruined.failures}
    assert ruined.facts.accuracy < ruined.facts.reference_accuracy - 0.2
    assert ruined.facts.sqnr_db > 80  # but it is what its own network answers


def test_structured_pruning_says_so_and_learns_nothing_when_the_budget_cannot_be_reached(pruned: Prune) -> None:
    report = pruned(kind="structured", macs_fraction=0.05, round_to=16)
    assert [check.name for check in report.failures] == ["prune.macs_fraction"]
    assert "no layer can be narrower than 16 channels" in str(report.failures[0])
    assert (report.facts.history, report.facts.best_epoch, report.artifacts) == ((), 0, {})


def test_structured_pruning_warns_when_steps_leave_much_of_the_budget_unused(pruned: Prune) -> None:
    checks = {
        check.name: check for check in pruned(kind="structured", macs_fraction=0.88, round_to=16, epochs=1).checks
    }
    assert checks["prune.macs_fraction"].passed
    assert not checks["prune.unused_macs"].passed
    assert not checks["prune.unused_macs"].blocks


def test_unstructured_pruning_keeps_the_shape_and_reaches_its_sparsity(pruned: Prune, learned, workspace: Make) -> None:
    report, out = pruned(**UNSTRUCTURED), workspace(learned.store)
    report.raise_if_blocked()
    facts = report.facts
    assert facts.after.sparsity == pytest.approx(0.8, abs=1e-3)
    assert (facts.macs_share, facts.channel_counts) == (1.0, {})
    whole, _ = source.load_network(out.path(learned.train.artifacts["model"]))
    sparse, _ = source.load_network(out.path(report.artifacts["network"]))
    shapes = [{name: tensor.shape for name, tensor in network.state_dict().items()} for network in (whole, sparse)]
    assert shapes[0] == shapes[1]
    assert facts.gzip_bytes == compressed_bytes(sparse) < 0.5 * compressed_bytes(whole)
    kept = [
        (a.weight, b.weight) for (_, a), (_, b) in zip(prunable_layers(whole), prunable_layers(sparse), strict=True)
    ]
    assert any(not torch.equal(a[b != 0], b[b != 0]) for a, b in kept)  # what is left has learned
    numerics(
        NumericsConfig(), out, model=exported(out, report, learned), golden=report.artifacts["golden"]
    ).raise_if_blocked()


def test_unstructured_pruning_fails_its_check_when_too_few_weights_are_zero(learned, workspace: Make) -> None:
    network, example = source.load_network(workspace(learned.store).path(learned.train.artifacts["model"]))
    from frameworks.torch.network_size import size_of

    size = size_of(network, [*example.values()])
    (check,) = Unstructured(sparsity=0.5).checks(size, size)
    assert not check.passed
    assert check.value == 0


def test_test_images_decide_nothing_when_they_are_other_ones(pruned: Prune, learned, workspace: Make) -> None:
    out = workspace(learned.store)
    test = read_npz_split(out.path(learned.splits["test"]))
    other = ArraySplit({"input": test.inputs["input"][::-1].copy()}, 9 - require_labels(test))
    changed = learned.splits | {"test": out.store_file(other.save(out.folder, "test"))}
    assert pruned(**STRUCTURED).artifacts["network"] == pruned(splits=changed, **STRUCTURED).artifacts["network"]


@pytest.mark.parametrize("config", [STRUCTURED, UNSTRUCTURED], ids=lambda c: c["kind"])
def test_pruning_goes_on_and_ends_at_the_same_weights_when_it_was_interrupted(
    pruned: Prune, learned, workspace: Make, config: dict[str, object]
) -> None:
    whole, half = pruned(**config), workspace(learned.store)
    with pytest.raises(KeyboardInterrupt):
        pruned(ended_after(1, half), **config)
    epochs: list[int] = []

    class Told(Workspace):
        def progress(self, done: int, total: int, unit: str, **metrics: float) -> None:
            if unit == "epoch":
                epochs.append(done)

    assert pruned(Told(half.store, half.folder), **config).artifacts == whole.artifacts
    assert epochs == [2]  # the first was not done again
    assert pruned(**config, training=TorchLoopConfig(seed=1)).artifacts["network"] != whole.artifacts["network"]


def test_pruning_fails_its_check_when_fine_tuning_loses_its_way(pruned: Prune) -> None:
    report = pruned(**STRUCTURED | {"learning_rate": 1e30})
    (check,) = report.failures
    assert check.name == "prune.loss"
    assert "lower prune.learning_rate" in check.remedy
    assert report.artifacts == {}


def test_pruning_is_refused_when_there_are_no_labels_to_learn_from(pruned: Prune, learned, workspace: Make) -> None:
    out = workspace(learned.store)
    unlabelled = ArraySplit(read_npz_split(out.path(learned.splits["train"])).inputs)
    with pytest.raises(StageError, match="'train' has none"):
        pruned(splits=learned.splits | {"train": out.store_file(unlabelled.save(out.folder, "train"))}, **STRUCTURED)


def test_network_that_a_user_brought_is_pruned_and_exported_with_its_code(workspace: Make, tmp_path) -> None:
    out, rng = workspace(), np.random.default_rng(0)
    splits = {}
    for name in ("train", "validation", "test"):
        pictures = rng.standard_normal((40, 3, 16, 16)).astype(np.float32)
        splits[name] = out.store_file(ArraySplit({"input": pictures}, rng.integers(0, 4, 40)).save(out.folder, name))
    brought = {"factory": "nets:make", "code_folder": tmp_path, "arguments": {"width": 12}}
    torch.manual_seed(0)
    weights = write_network(tmp_path, "return self.head(features.mean((2, 3)))")
    from gauntlet.core.user_code import UserCode

    torch.save(UserCode.read(tmp_path, "nets:make").function()(width=12).state_dict(), weights)
    report = train(TorchModel(weights=weights, **brought), out, splits=splits, signature=SIGNATURE)
    told = {"network": report.artifacts["model"], "golden": report.artifacts["golden"], "splits": splits}
    config, signature = Structured(macs_fraction=0.5, round_to=1, epochs=1), report.facts.signature
    small = prune(config, out, signature=signature, **told)
    small.raise_if_blocked()
    assert small.facts.channel_counts == {"conv": (12, 6)}
    golden = small.artifacts["golden"]
    made = export(TorchScript(), out, model=small.artifacts["network"], signature=signature, golden=golden)
    numerics(NumericsConfig(), out, model=made.artifacts["model"], golden=golden).raise_if_blocked()


QUANTIZE = [{"kind": "static"}, {"kind": "dynamic"}]
BROUGHT = {"kind": "torch-model", "factory": "nets:make", "weights": "weights.pt"}


@pytest.mark.parametrize("train", [{"kind": "torch"}, BROUGHT], ids=lambda t: t["kind"])
def test_each_pruned_network_is_a_candidate_and_again_with_every_static_recipe(train: dict[str, Any]) -> None:
    prune = [{"kind": "structured", "macs_fraction": 0.25}, {"kind": "unstructured"}]
    config = PipelineConfig.model_validate({"train": train, "optimize": [], "quantize": QUANTIZE, "prune": prune})
    assert config.candidates == (
        *("fp32", "static-u8s8", "dynamic-u8"),
        *("pruned-25", "pruned-25-static-u8s8", "sparse-80", "sparse-80-static-u8s8"),
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"train": {"kind": "sklearn"}, "prune": [{"kind": "structured"}]},
            "prune supports networks of train.kind torch or torch-model, not 'sklearn'; remove it",
        ),
        (
            {"prune": [{"kind": "structured", "macs_fraction": 0.125}]},
            "prune.0.macs_fraction: 0.125: write a whole percent",
        ),
        (
            {"prune": [{"kind": "structured", "macs_fraction": 1.5}]},
            "prune.0.macs_fraction: 1.5: input should be less than or equal to",
        ),
        ({"prune": [{"kind": "structured", "round_to": 0}]}, "prune.0.round_to: 0: input should be greater than"),
        ({"prune": [{"kind": "channels"}]}, "prune.0.kind: channels (allowed: 'structured', 'unstructured')"),
        (
            {"prune": [{"kind": "structured"}, {"kind": "structured", "epochs": 9}]},
            "two candidates named 'pruned-50'; remove one of them",
        ),
    ],
)
def test_prune_is_refused_in_one_line_when_it_cannot_work(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    (line,) = str(caught.value).splitlines()
    assert message in line


@given(st.integers(1, 99))
def test_names_tell_whole_percents_apart(percent: int) -> None:
    assert Structured(macs_fraction=percent / 100).name == f"pruned-{percent}"
    assert Unstructured(sparsity=percent / 100).name == f"sparse-{percent}"

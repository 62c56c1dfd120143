"""What an assistant may set: nothing that loosens a gate."""

from pathlib import Path

import pytest

from gauntlet.core.errors import ConfigError
from wings.assistants.offered_commands import offered_commands, permitted

PRESET = """name: strict
evaluate: {min_accuracy: 0.9, min_recall: 0.7}
accuracy: {max_accuracy_drop: 0.02}
budget: {max_size_mb: 5, max_p50_ms: {1: 10}}
"""


@pytest.fixture
def preset(tmp_path: Path) -> str:
    path = tmp_path / "strict.yaml"
    path.write_text(PRESET)
    return str(path)


@pytest.mark.parametrize(
    ("setting", "passed"),
    [
        ("quantize=[{kind: static}]", "quantize=[{kind: static}]"),
        ("quantize.0.per_channel=false", "quantize.0.per_channel=false"),
        ("select.objective=size", "select.objective=size"),
        ("accuracy.max_accuracy_drop=0.02", "accuracy.max_accuracy_drop=0.02"),
        ("accuracy.max_accuracy_drop=1e-3", "accuracy.max_accuracy_drop=0.001"),
        ("evaluate.min_recall=0.8", "evaluate.min_recall=0.8"),
        ("budget.max_size_mb=010", None),  # YAML reads 8, which is looser as well
        ("budget.max_size_mb=4", "budget.max_size_mb=4"),
        ("structure.max_opset=17", "structure.max_opset=17"),
        ("accuracy.max_accuracy_drop=0.03", None),
        ("accuracy.max_accuracy_drop=.nan", None),
        ("accuracy.max_accuracy_drop=nan", None),
        ("accuracy.max_accuracy_drop=null", None),
        ("evaluate.min_recall=0.6", None),
        ("evaluate.min_accuracy=true", None),
        ("evaluate={}", None),
        ("accuracy={max_accuracy_drop: 0.5}", None),
        ("accuracy.unresolved=accept", None),
        ("numerics.samples=1", None),
        ("budget.max_p50_ms.1=20", None),
        ("budget.max_p50_ms={1: 20}", None),
        ("select.min_speedup=1", None),
        ("benchmark.resolution=0.9", None),
        ("overrides=[{check: evaluate.min_recall, reason: I say that it is fine}]", None),
        ("data.path=other.npz", None),
        ("optimize=[{kind: custom, function: 'evil:run'}]", None),
        ("quantizes=1", None),
        ("nonsense", None),
    ],
)
def test_setting_passes_unless_it_loosens_a_gate_or_is_not_free(preset: str, setting: str, passed: str | None) -> None:
    if passed is not None:
        assert permitted(preset, [setting]) == [passed]
        return
    with pytest.raises(ConfigError, match="an assistant "):
        permitted(preset, [setting])


def test_model_has_the_default_limits() -> None:
    assert permitted("model.onnx", ["accuracy.max_accuracy_drop=0.005"])
    with pytest.raises(ConfigError, match=r"cannot loosen a gate; accuracy.max_accuracy_drop is 0.01"):
        permitted("model.onnx", ["accuracy.max_accuracy_drop=0.05"])


def test_words_of_a_call_are_those_of_the_command_line() -> None:
    arguments = {"config": "-m.onnx", "data": "images", "set": ["quantize=[]"], "fresh": True, "shape": ["x=3x8x8"]}
    assert offered_commands()["run"].words(arguments) == [
        "run", "--data=images", "--fresh", "--shape=x=3x8x8", "--set=quantize=[]", "--", "-m.onnx"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("run", {"config": "model.onnx", "trust": True}, "run: unknown argument 'trust'"),
        ("run", {"config": "model.onnx", "out": "x.onnx"}, "run: unknown argument 'out'"),
        ("run", {"config": "model.py:f"}, "run: config: code is run from the command line alone"),
        ("validate", {"config": ["model.onnx"], "data": "a.PY"}, "validate: data: code is run"),
        ("inspect", {"model": "model.onnx", "graph": "graph.html"}, "inspect: unknown argument 'graph'"),
    ],
)
def test_argument_that_writes_trusts_or_runs_code_is_refused(
    command: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        offered_commands()[command].words(arguments)


def test_no_command_that_promotes_or_serves_is_offered() -> None:
    assert {"run", "show"} <= {*offered_commands()}
    assert not {"promote", "rollback", "retrain", "serve", "clean", "bundle", "up"} & {*offered_commands()}

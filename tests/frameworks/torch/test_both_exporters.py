"""Cross-check of two exporters with the framework model; each exporter is the wrong one once."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_networks import BODIES, bring, write_network

from frameworks.torch.both_exporters import BothTorchExporters
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.user_code import UserFunction
from gauntlet.core.workspace import Workspace
from tasks.export import ExportFacts, export
from tasks.numerics import NumericsConfig, numerics
from tasks.train.facts import TrainFacts

pytestmark = pytest.mark.slow
WRONG_TRANSLATION = """

def symbolics():
    return {"aten::relu": lambda g, x: g.op("Abs", x)}


def translations():
    from onnxscript import opset18

    return {torch.ops.aten.relu.default: lambda x: opset18.Abs(x)}


def broken():
    raise RuntimeError("no translation today")


def nothing():
    return None
"""
Ask = Callable[..., Report[ExportFacts]]


@pytest.fixture
def ask(tmp_path: Path, workspace: Callable[..., Workspace]) -> Ask:
    """Return a function that brings a network, lets both exporters try; `ask.golden` keeps the golden outputs."""

    def run(body: str, sizes: list[tuple[int, int]] | None = None, **config: object) -> Report[ExportFacts]:
        source: Report[TrainFacts] = bring(workspace(), tmp_path / "user", body, input_sizes=sizes or [])
        write_network(tmp_path / "wrong", BODIES["sound"], "wrong", WRONG_TRANSLATION)
        golden.append(source.artifacts["golden"])
        return export(
            BothTorchExporters.model_validate(config),
            workspace(),
            model=source.artifacts["model"],
            signature=source.facts.signature,
            golden=source.artifacts["golden"],
        )

    golden: list[Artifact] = []
    run.golden = golden  # type: ignore[attr-defined]
    return run


def vote(report: Report[ExportFacts]) -> Check:
    return next(check for check in report.checks if check.name == "export.wrong_exporters")


def largest(report: Report[ExportFacts], between: str) -> float:
    return max(row.max_abs_error for row in report.facts.cross_check.distances if row.between == between)


def wrong(tmp_path: Path, *exporters: str) -> dict[str, object]:
    keys = {"torchscript": "custom_symbolics", "dynamo": "custom_translation_table"}
    functions = {"torchscript": "symbolics", "dynamo": "translations"}
    return {
        name: {"kind": name, keys[name]: {"function": f"wrong:{functions[name]}", "code_folder": tmp_path / "wrong"}}
        for name in exporters
    }


@pytest.mark.parametrize("prefer", ["torchscript", "dynamo"])
def test_vote_uses_the_preferred_exporter_when_both_are_right(ask: Ask, prefer: str) -> None:
    report = ask("sound", [(24, 20)], prefer=prefer)
    assert vote(report).passed
    assert (report.facts.cross_check.used, report.facts.cross_check.wrong) == (prefer, {})
    assert {row.data for row in report.facts.cross_check.distances} == {"real", "random", "24x20"}
    for between in ("source and torchscript", "source and dynamo", "torchscript and dynamo"):
        assert largest(report, between) < 1e-5


def test_vote_names_torchscript_and_uses_dynamo_when_the_trace_froze_the_width(
    ask: Ask, workspace: Callable[..., Workspace]
) -> None:
    report = ask("size_as_number", [(16, 40)], prefer="torchscript")
    report.raise_if_blocked()  # a warning: there is a right model
    check = vote(report)
    assert (check.passed, check.value) == (False, 1)
    assert check.detail.startswith("torchscript: ")
    assert check.detail.endswith("from the source on 16x40 inputs; the other one agrees with the source and is used")
    assert report.facts.cross_check.used == "dynamo"
    assert largest(report, "source and torchscript") > 1e-2
    assert largest(report, "torchscript and dynamo") > 1e-2
    assert largest(report, "source and dynamo") < 1e-5
    model, golden = report.artifacts["model"], ask.golden[0]
    assert not numerics(NumericsConfig(), workspace(), model=model, golden=golden).failures


@pytest.mark.parametrize(("bad", "good"), [("dynamo", "torchscript"), ("torchscript", "dynamo")])
def test_vote_names_the_exporter_when_its_translation_is_wrong(ask: Ask, tmp_path: Path, bad: str, good: str) -> None:
    report = ask("sound", prefer=bad, **wrong(tmp_path, bad))
    report.raise_if_blocked()
    assert (report.facts.cross_check.used, set(report.facts.cross_check.wrong)) == (good, {bad})
    assert vote(report).detail.startswith(f"{bad}: ")
    assert largest(report, f"source and {bad}") > 1e-2
    assert largest(report, f"source and {good}") < 1e-5


def test_vote_stops_the_run_when_both_are_wrong_in_the_same_way(ask: Ask, tmp_path: Path) -> None:
    report = ask("sound", **wrong(tmp_path, "torchscript", "dynamo"))
    (failure,) = report.failures
    assert (failure.name, failure.value) == ("export.wrong_exporters", 2)
    assert "the other exporter agrees with it: check whether the source itself is repeatable" in failure.detail
    assert largest(report, "torchscript and dynamo") < 1e-5


def test_vote_stops_the_run_when_one_freezes_a_branch_and_the_other_refuses_it(ask: Ask) -> None:
    (failure,) = ask("branch_on_values").failures
    assert "dynamo cannot export the network: GuardOnDataDependentSymNode" in failure.detail
    assert "torchscript: " in failure.detail
    assert "nothing in Python depends on values" in failure.remedy


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong:broken", "wrong:broken fails: RuntimeError: no translation today"),
        ("wrong:nothing", "wrong:nothing returns NoneType; return a dictionary"),
        ("wrong:absent", "wrong:absent: wrong has no function 'absent'"),
        ("missing:absent", "missing:absent: missing cannot be imported"),
    ],
)
def test_functions_are_refused_with_their_key_when_they_fail(tmp_path: Path, function: str, message: str) -> None:
    write_network(tmp_path, BODIES["sound"], "wrong", WRONG_TRANSLATION)
    with pytest.raises(StageError, match=re.escape(f"export.custom_symbolics: {message}")):
        TorchScript(custom_symbolics=UserFunction(function=function, code_folder=tmp_path)).functions()


def test_vote_tells_why_when_an_exporters_own_functions_fail(ask: Ask, tmp_path: Path) -> None:
    options = {"custom_symbolics": {"function": "wrong:broken", "code_folder": tmp_path / "wrong"}}
    report = ask("sound", torchscript=options)
    report.raise_if_blocked()
    assert report.facts.cross_check.used == "dynamo"
    assert "export.custom_symbolics: wrong:broken fails" in vote(report).detail


def test_export_breaks_when_neither_exporter_can(ask: Ask, tmp_path: Path) -> None:
    options = {
        name: part | {list(part)[1]: {"function": "wrong:broken", "code_folder": tmp_path / "wrong"}}
        for name, part in wrong(tmp_path, "torchscript", "dynamo").items()
    }
    with pytest.raises(StageError, match=r"export.custom_symbolics: .*; export.custom_translation_table: "):
        ask("sound", **options)


def test_files_are_those_of_both_exporters_when_they_have_functions(tmp_path: Path) -> None:
    write_network(tmp_path / "wrong", BODIES["sound"], "wrong", WRONG_TRANSLATION)
    config = BothTorchExporters.model_validate(wrong(tmp_path, "torchscript", "dynamo"))
    assert [path.name for path in config.files() if path.name != "METADATA"] == ["wrong.py", "wrong.py"]

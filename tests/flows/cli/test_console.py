"""What a terminal shows of a run: a table that fits, with the verdict of every candidate, and the reasons below it."""

import io
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from reported_runs import entry, passed, raced, run  # noqa: F401
from rich.console import Console
from rich.progress import Progress

from flows.cli import main as main_module
from flows.cli.console import Lines, candidates_table, print_report, reasons
from flows.cli.report_tables import latency_table
from flows.record.home import Home
from flows.record.prefect_artifacts import _row
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.run_report import CAUSE_SEPARATOR, BenchmarkRow, CandidateEntry, RunReport

BROKEN = "optimize.accepted_passes: 0 passes must be > 0 passes; onnxsim: timed out"
SAME = "nothing to gain here: ONNX Runtime optimizes the model to the same graph by itself"
DROPPED = f"dropped after round 3, slower than small: 0.5x{CAUSE_SEPARATOR}its activations are signed"
LONG = "static-u8s8-percentile99.99-reduce-range"
FILE = Artifact(name="model.onnx", sha256="ab", size_bytes=9, path=f"ab/{'ab' * 32}-model.onnx/model.onnx")


def measured(speedup: float, verdict: str, batches: tuple[int, ...] = (1,)) -> tuple[BenchmarkRow, ...]:
    return tuple(raced(batch, 2.0 / speedup, speedup, speedup - 0.1, speedup + 0.1, verdict) for batch in batches)


def test_output_on_the_readme_has_the_columns_and_lines_that_a_run_prints(passed: RunReport) -> None:  # noqa: F811
    [shown] = re.findall(r"```text\n(.*?)```", (Path(__file__).parents[3] / "README.md").read_text(), re.DOTALL)
    console = Console(file=io.StringIO(), width=120)
    package = passed.stages[-1].replace(stage="package", artifacts={"bundle": FILE})
    print_report(console, passed.replace(stages=(*passed.stages, package)), Home(Path("home")))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    [head, *rows] = [line for line in shown.splitlines() if line]
    [title] = [line for line in printed.splitlines() if line.startswith(" candidate") and "verdict" in line]
    assert set(re.split(r"\s{2,}", head.strip())) <= set(re.split(r"\s{2,}", title.strip()))
    for start in (row.split()[0] for row in rows if ": " in row):
        assert f"\n{start} " in printed


def candidate(name: str, reason: str = "", rows: tuple[BenchmarkRow, ...] = ()) -> CandidateEntry:
    status, parent = "rejected" if reason else "accepted", None if name == "fp32" else "fp32"
    return CandidateEntry(name=name, parent=parent, status=status, reason=reason, benchmark=rows, artifact=FILE)


@pytest.fixture
def report() -> RunReport:
    candidates = (
        candidate("fp32", rows=measured(1.0, "reference")),
        candidate("one", BROKEN),
        candidate("two", BROKEN),
        candidate("small", rows=measured(3.0, "faster")),
        candidate("slow", DROPPED, measured(0.5, "slower")),
    )
    return run(run_id="r", verdict="passed", reason="3x", winner="small", candidates=candidates)


@pytest.fixture
def crowded(report: RunReport) -> RunReport:
    """What `quantize: auto` makes of a run: long names, two batch sizes."""
    both = (1, 8)
    more = tuple(
        candidate(f"{LONG}{end}", DROPPED, measured(12.34, "faster", both)).replace(
            accuracy=0.98, sqnr_db=33.3, size_bytes=99_200_000
        )
        for end in ("", "-float-head", "-repaired")
    )
    return report.replace(candidates=(*report.candidates, *more), winner=f"{LONG}-repaired")


def printed(report: RunReport, width: int, home: Path = Path("/home")) -> list[str]:
    text = io.StringIO()
    print_report(Console(file=text, width=width), report, Home(home))
    return text.getvalue().splitlines()


def test_reasons_stand_below_the_table_once_for_all_who_share_one(report: RunReport) -> None:
    lines = printed(report, 80)
    start = lines.index("Rejected:")
    told = " ".join(" ".join(line for line in lines[start + 1 :] if line.startswith("  ")).split())
    assert told == (
        f"one, two: {BROKEN} slow: dropped after round 3, slower than small, because its activations are signed"
    )


@pytest.mark.parametrize(("status", "title"), [("unchanged", "Not raced:"), ("not tried", "Not tried:")])
def test_candidates_that_no_gate_judged_are_not_called_rejected(report: RunReport, status: str, title: str) -> None:
    same = candidate("same", SAME).replace(status=status)
    lines = printed(report.replace(candidates=(*report.candidates, same)), 200)
    assert lines[lines.index(title) + 1] == f"  same: {SAME}"
    assert "same" not in {name for names in reasons(report).values() for name in names}
    assert any(line.startswith(" same ") and status in line for line in lines)


@pytest.mark.parametrize("width", [80, 100, 130, 200])
def test_table_fits_and_keeps_every_verdict_when_names_are_long(crowded: RunReport, width: int) -> None:
    lines = [line.rstrip() for line in printed(crowded, width)]
    table = lines[: lines.index("Rejected:")]
    assert max(map(len, table)) <= width
    assert not any("…" in line for line in table)
    words = [line.split() for line in table]
    verdicts = [next((w for w in line if w in {"reference", "accepted", "rejected", "winner"}), None) for line in words]
    assert [v for v in verdicts if v] == ["reference", "rejected", "rejected", "accepted", *["rejected"] * 3, "winner"]
    assert sum("12.34x [12.24, 12.44]" in line for line in table) == 3
    assert [any("batch 8" in line for line in table), any("ms, batch 1" in line for line in table)] == [
        width >= 130,
        width >= 200,
    ]


def test_table_of_a_run_without_labels_has_no_column_for_the_accuracy(crowded: RunReport) -> None:
    candidates = tuple(c.replace(accuracy=None) for c in crowded.candidates)
    lines = printed(crowded.replace(candidates=candidates, metric="character_accuracy"), 80)
    table = lines[: lines.index("Rejected:")]
    assert not any("characters right" in line or "…" in line for line in table)
    assert any("SQNR" in line for line in table)


@pytest.mark.parametrize("width", [80, 150])
def test_table_says_where_each_is_to_be_run_when_that_differs(report: RunReport, width: int) -> None:
    assert not any(" on " in line for line in printed(report, width)[: len(report.candidates) + 4])
    places = {"fp32": "ort-cpu", "small": "openvino-f32", "slow": "ort-cpu"}
    candidates = tuple(c.replace(target=places.get(c.name)) for c in report.candidates)
    cells = [str(cell) for cell in candidates_table(report.replace(candidates=candidates), width).columns[1].cells]
    assert cells == ["reference\non ort-cpu", "rejected", "rejected", "winner\non openvino-f32", "rejected"]
    on_prefects_page = [_row(c, report)["status"] for c in report.candidates]
    assert on_prefects_page == [verdict.partition("\n")[0] for verdict in cells]
    assert "mIoU" in _row(report.candidates[0], report.replace(metric="miou"))


def test_winners_file_and_report_are_named_with_paths_that_can_be_copied(
    report: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(report, 60)[-2:] == [f"Model: /home/store/{FILE.path}", "Report: /home/runs/r/report.html"]
    monkeypatch.chdir(tmp_path)
    assert printed(report, 60, tmp_path / ".gauntlet")[-2] == f"Model: .gauntlet/store/{FILE.path}"


def test_failed_run_names_its_gate_in_one_line(report: RunReport) -> None:
    check = Check(name="numerics.max_rel_error", value=0.5, op="<=", limit=1e-4, detail="worst output 'logits'")
    weak = Check(name="data.small", value=1, op=">", limit=2, severity="warning")
    stages = (entry("numerics", check, weak),)
    failed = run(run_id="r", stopped_at="numerics", reason=str(check), stages=stages)
    assert printed(failed, 200) == [
        "digits-resnet18, run r",
        "warning: data.small: 1 must be > 2",
        "Failed at numerics: numerics.max_rel_error: 0.5 must be <= 0.0001; worst output 'logits'",
        "Report: /home/runs/r/report.html",
    ]


def test_names_that_a_model_brings_send_the_terminal_no_commands(
    report: RunReport, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "\x1b]0;title\x07"
    empty = Check.of("data.empty_classes", 1, "==", 0, name, severity="warning")
    rejected = candidate("a", reason=name)
    failed = run(stopped_at="structure", reason=name, stages=(entry("data", empty),), candidates=(rejected,))
    won = report.replace(reason=name)
    file = io.StringIO()
    console = Console(file=file, width=80)
    Lines(console, Progress(console=console)).emit(logging.makeLogRecord({"msg": name, "levelno": logging.INFO}))
    monkeypatch.setattr(main_module, "parser", lambda: parser_that_raises(StageError(name)))
    assert main_module.main(["run"]) == StageError.exit_code
    for text in (file.getvalue(), *printed(failed, 80), *printed(won, 80), capsys.readouterr().err):
        assert "\x1b" not in text


def parser_that_raises(error: Exception) -> SimpleNamespace:
    def parse(_: object) -> None:
        raise error

    return SimpleNamespace(parse_args=parse)


def test_reason_that_a_check_and_the_winner_share_is_told_once(report: RunReport) -> None:
    reason = "no candidate is proven faster than fp32 by more than 1.03x"
    margin = Check.of("select.min_speedup", 1.0, ">", 1.03, reason, "wait", unit="x", severity="warning")
    lines = printed(report.replace(winner="fp32", reason=reason, stages=(entry("select", margin),)), 200)
    assert "warning: select.min_speedup: 1x must be > 1.03x. Fix: wait" in lines
    assert " ".join(lines).count(reason) == 1


def test_latencies_are_those_that_the_speed_up_is_over_and_of_both_of_the_winners_races(report: RunReport) -> None:
    elsewhere = tuple(row.replace(target="openvino", median_ms=0.5) for row in measured(4.0, "faster"))
    rows = elsewhere + measured(1.0, "reference")
    base = candidate("fp32", rows=rows)
    alone = base.replace(benchmark=(rows[0].replace(median_ms=0.75), *rows[1:]), first_race=rows)
    shown = [" ".join(line.split()) for line in printed(report.replace(winner="fp32", candidates=(alone,)), 200)]
    assert [line for line in shown if line.endswith(" ms")] == [
        "fp32 1 2.00 ms", "fp32 on openvino 1 0.500 ms", "fp32, raced again alone 1 0.750 ms",
    ]  # fmt: skip


def test_each_work_in_progress_has_a_bar_until_it_ends() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    bar = Progress(console=console)
    lines = Lines(console, bar)

    def log(name: str, message: str = "", **extra: object) -> None:
        lines.emit(logging.makeLogRecord({"name": name, "msg": message, "levelno": logging.INFO, **extra}))

    def shown() -> list[tuple[str, float, str]]:
        return [(task.description, task.completed, task.fields["of"]) for task in bar.tasks]

    log("gauntlet-steps", work="a", began="prune half")
    log("gauntlet-steps", work="b", began="quantize static")
    log("gauntlet-steps", work="a", done=3, total=40, unit="batch")
    log("gauntlet-steps", work="b", done=1, total=2, unit="images")
    log("gauntlet", "data passed")
    assert shown() == [("prune half: batch", 3, "3/40"), ("quantize static: images", 1, "1/2")]
    log("gauntlet-steps", work="a", began="prune half")  # again, for its process was killed
    log("gauntlet-steps", work="b", ended="quantize static")
    log("gauntlet-steps", work="b", ended="quantize static")
    assert shown() == [("prune half", 0, "")]
    log("gauntlet-steps", work="a", ended="prune half")
    log("gauntlet-steps", work="bench", done=1, total=16, unit="round")  # a command without stages tells no end
    assert shown() == [("round", 1, "1/16")]
    log("gauntlet", "done")
    assert shown() == []


ROW = BenchmarkRow(
    target="ort-cpu", batch=8, median_ms=10.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1, verdict="faster",
    calls=400, mean_ms=10.5, p90_ms=12.0, p99_ms=15.0, images_per_second=761.9, peak_rss_bytes=150_000_000,
)  # fmt: skip
UNKNOWN = ROW.replace(batch=1, mean_ms=None, p90_ms=None, p99_ms=None, images_per_second=None, peak_rss_bytes=None)


@pytest.mark.parametrize(("width", "all_columns"), [(80, False), (120, True)])
def test_table_has_what_the_width_has_room_for(width: int, *, all_columns: bool) -> None:
    console = Console(file=io.StringIO(), width=width)
    name = "pruned-25-static-u8s8-percentile99.99"
    console.print(latency_table([((name,), ROW), (("fp32",), UNKNOWN)], ("candidate",), width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert ("10.5 ms 12.0 ms" in text, "mean p90" in text) == (all_columns, all_columns)
    assert "10.0 ms" in text
    assert "15.0 ms 762 150.0 MB" in text
    assert "batch median" in text
    assert text.endswith("– – –" if not all_columns else "– – – – –")


def test_column_without_any_figure_is_left_out() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(latency_table([(("fp32",), UNKNOWN), (("small",), ROW.replace(p99_ms=None))], ("candidate",), 120))
    assert "p99" not in console.file.getvalue()
    assert "p90" in console.file.getvalue()


def test_long_names_of_models_and_targets_leave_room_for_the_figures() -> None:
    console = Console(file=io.StringIO(), width=80)
    words = ("mobilenet_v3_small_int8_static_percentile", "openvino-int8-throughput")
    console.print(latency_table([(words, ROW)], ("model", "target"), 80))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "150.0 MB" in text

"""`gauntlet bench`, `compare` and `targets` as a person meets them."""

import io
import json
import shutil
import sys
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from graded_bundles import run_report
from harness import called
from PIL import Image
from rich.console import Console

from flows.cli.main import main
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow, RunReport
from gauntlet.race.target_examiner import ModelOnTarget
from gauntlet.targets import OrtCpu, by_name
from wings.comparison import compare_command, targets_command
from wings.comparison.bench_command import named, print_comparison, resolve_targets
from wings.comparison.library.latency_plot import plot_latency
from wings.comparison.library.run_comparison import compare_runs
from wings.comparison.library.target_comparison import BenchResult
from wings.providers.openvino import OpenVino

QUICK = ("--rounds", "6", "--block-ms", "2", "--threads", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hides the one of this folder's conftest: nothing here needs a finished run."""
    onnx.save(faulty_models.cnn(), tmp_path / "cnn.onnx")
    onnx.save(faulty_models.cnn(batch="n"), tmp_path / "again.onnx")
    return tmp_path


def test_table_of_four_targets_fits_80_columns_and_names_the_models() -> None:
    row = {"median_ms": 12.345, "speedup": 12.34, "speedup_low": 11.98, "speedup_high": 13.02, "verdict": "faster"}
    rows = [BenchmarkRow.model_validate(row | {"target": "t", "batch": batch, "more_rounds": 12}) for batch in (1, 8)]
    targets = ("ort-cpu", "openvino-f32", "openvino-bf16", "ort-openvino-int8-throughput")
    pairs = tuple(
        ModelOnTarget(candidate="mobilenet_v3_small", target=target, status="measured", rows=tuple(rows))
        for target in targets
    )
    known = {"reference": "a", "inputs": "random", "threads": 2, "rounds": 6, "block_ms": 1, "resolution": 0.005}
    console = Console(file=io.StringIO(), width=80)
    print_comparison(console, BenchResult.model_validate(known | {"pairs": pairs}))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "mobilenet_v3_" in text
    assert "on openvino-bf16" in text


@pytest.mark.slow
def test_bench_measures_draws_and_records(folder: Path) -> None:
    done = called(
        folder, "bench", "cnn.onnx", "again.onnx", "--targets", "ort-cpu,openvino-bf16", "--batch", "1,4", *QUICK,
        "--plot", "p.svg", "--mlflow", "benches",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("cnn", "again", "ort-cpu", "f32", "batch 1", "batch 4", "ms", "the reference against itself"):
        assert word in done.stdout
    assert "openvino-bf16: unavailable" in done.stdout
    assert "gauntlet targets install openvino" in done.stdout
    assert "again on ort-cpu" in (folder / "p.svg").read_text()
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / '.gauntlet' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("benches")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {"bench", "cnn on ort-cpu", "again on openvino-bf16"} <= set(runs)
    assert runs["again on ort-cpu"].data.metrics["latency.b4.p50_ms"] > 0
    assert runs["cnn on openvino-bf16"].data.tags["status"] == "unavailable"


@pytest.mark.slow
def test_bench_races_sessions_when_some_are_asked_for(folder: Path) -> None:
    done = called(
        folder, "bench", "cnn.onnx", "--batch", "1", *QUICK, "--early-stopping", "--json",
        "--session", "spinning=false", "--session", "arena=false,level=extended",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    comparison = BenchResult.model_validate_json(done.stdout)
    targets = [pair.rows[0].target for pair in comparison.pairs]
    assert targets == ["ort-cpu", "ort-cpu-nospin", "ort-cpu-extended-noarena"]


@pytest.mark.slow
def test_bench_prints_json_with_the_samples_of_a_file(folder: Path) -> None:
    np.savez(folder / "in.npz", x=np.ones((2, 3, 16, 16), np.float32))
    done = called(folder, "bench", "cnn.onnx", "--batch", "3", *QUICK, "--inputs", "in.npz", "--json")
    assert done.returncode == 0, done.stderr
    comparison = BenchResult.model_validate_json(done.stdout)
    assert comparison.inputs == "in.npz"
    assert [row.batch for row in comparison.pairs[0].rows] == [3]
    assert comparison.pairs[0].validation is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.onnx"], "absent.onnx: no such file"),
        (["cnn.onnx", "--targets", "abacus"], "unknown target 'abacus'"),
        (["cnn.onnx", "--plot", "p.pdf"], "must end in .png or .svg"),
        (["cnn.onnx", "--inputs", "text.npz"], "text.npz: not an .npz file"),
        (["cnn.onnx", "--shape", "z=3x4"], "--shape z: unknown input; available: x"),
        (["cnn.onnx", "--shape", "3x4"], "write INPUT=3x224x224"),
        (["cnn.onnx", "--shape", "x=1x2", "--shape", "x=1x3"], "--shape x: given twice; bench races one size. Fix: "),
        (["cnn.onnx", "--batch", "1,0"], "'0' is not a whole number of at least 1"),
        (["cnn.onnx", "--rounds", "5"], "at least 6"),
        (["cnn.onnx", "--target", "ort-cpu"], "'ort-cpu': write OPTION=VALUE,..."),
        (["cnn.onnx", "--target", "threads=1"], "unknown target kind=; available: ort-cpu, "),
        (["cnn.onnx", "--target", "kind=ort-cpu,spin=false"], "target ort-cpu: spin: Extra inputs are not permitted"),
        (["cnn.onnx", "--target", "kind=openvino,precision=f8"], "target openvino: precision: Input should be 'f32'"),
        (["cnn.onnx", "--target", "kind=ort-cpu,inter_op_threads=2,threads=1"], "branches need at least two threads"),
        (["cnn.onnx", "--target", "kind=ort-cpu,threads=4096"], "ort-cpu-4096t asks for 4096 threads"),
        (["cnn.onnx", "--targets", "ort-cpu", "--target", "kind=ort-cpu"], "ort-cpu is given twice"),
        (["cnn.onnx", "--session", "threads"], "write OPTION=VALUE"),
        (["cnn.onnx", "--session", "spin=false"], "--session spin: Extra inputs"),
        (["cnn.onnx", "--session", "threads=4096"], "ort-cpu-4096t asks for 4096 threads"),
        (["cnn.onnx", "--threads", "1,4096"], "ort-cpu-4096t asks for 4096 threads"),
        (["cnn.onnx", "--threads", "1", "--session", "threads=1"], "ort-cpu-1t is the same as ort-cpu here"),
        (["text.npz"], "text.npz: not a readable ONNX model"),
    ],
)
def test_bench_is_refused_in_one_line(folder: Path, arguments: list[str], words: str) -> None:
    (folder / "text.npz").write_text("hello")
    done = called(folder, "bench", *arguments)
    assert done.returncode == (3 if arguments == ["text.npz"] else 2)  # what the others ask for is wrong
    assert words in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("gauntlet")]) == 1


@pytest.mark.slow
def test_bench_ends_with_exit_code_1_when_a_model_breaks(folder: Path) -> None:
    (folder / "broken.onnx").write_bytes(b"nothing")
    done = called(folder, "bench", "cnn.onnx", "broken.onnx", "--batch", "1", *QUICK)
    assert done.returncode == 1
    assert "not ranked: broken on ort-cpu: " in done.stdout


@pytest.mark.slow
def test_bench_ends_with_exit_code_1_when_outputs_are_others(folder: Path) -> None:
    other = onnx.load(folder / "cnn.onnx")
    [given] = other.graph.output
    y = given.name
    text = f"m (float[n,10] {y}) => (float[n,20] twice) {{ twice = Concat<axis = 1>({y}, {y}) }}"
    other.graph.node.extend(onnx_text.model(text).graph.node)
    given.name, given.type.tensor_type.shape.dim[1].dim_value = "twice", 20
    onnx.save(other, folder / "other.onnx")
    done = called(folder, "bench", "cnn.onnx", "other.onnx", "--batch", "1", *QUICK)
    assert done.returncode == 1
    assert "not compared: other on ort-cpu: its outputs are" in done.stdout


def test_targets_are_named_or_written_with_their_options() -> None:
    written = [{"kind": "ort-cpu", "threads": "2", "spinning": "false"}, {"kind": "openvino", "env": "/opt/other"}]
    found = resolve_targets(["openvino-bf16"], written)
    assert found == [by_name("openvino-bf16"), OrtCpu(threads=2, spinning=False), OpenVino(env="/opt/other")]
    assert [target.name for target in found] == ["openvino-bf16", "ort-cpu-2t-nospin", "openvino-f32-other"]
    assert [target.name for target in resolve_targets([], written[:1])] == ["ort-cpu-2t-nospin"]
    assert resolve_targets([], []) == [OrtCpu()]


@pytest.mark.slow
def test_bench_races_a_target_with_its_options_and_tells_the_batch_that_failed(folder: Path) -> None:
    """The environment is this one, in other words: whatever runs there is started as it is in a foreign one."""
    onnx.save(faulty_models.picky(1, 4), folder / "picky.onnx")
    env = str(Path(sys.executable).parents[1])
    written = ("--target", f"kind=ort-cpu,level=basic,env={env}", "--target", "kind=ort-cpu,spinning=false")
    done = called(folder, "bench", "picky.onnx", "--batch", "1,2", *QUICK, *written)
    assert done.returncode == 1, done.stdout + done.stderr
    name = f"ort-cpu-basic-{Path(env).name}"
    told = " ".join(done.stdout.split())
    for word in (name, "ort-cpu-nospin", "reference", f"failed: picky on {name}: batch 2: "):
        assert word in told
    assert "not ranked" not in told


def test_two_files_of_one_name_are_told_apart(folder: Path) -> None:
    (folder / "a").mkdir()
    shutil.copy(folder / "cnn.onnx", folder / "a" / "cnn.onnx")
    paths = [folder / "cnn.onnx", folder / "a" / "cnn.onnx", folder / "again.onnx"]
    assert list(named(paths)) == [str(paths[0]), str(paths[1]), "again"]


LINES = {f"model on target-{n}": [(1, 1.0 + n, 0.9 + n, 1.2 + n), (32, 9.0, 8.0, 11.0)] for n in range(12)}


def test_plot_is_written_in_a_colour_a_line(tmp_path: Path) -> None:
    plot_latency(LINES, tmp_path / "p.png", "rounds \x1b[31m of a$x_$.onnx")
    with Image.open(tmp_path / "p.png") as picture:
        assert len(picture.getcolors(1 << 20) or ()) > 12


@pytest.fixture
def two() -> tuple[RunReport, RunReport]:
    drop = Check.of("accuracy.max_accuracy_drop", 0.03, "<=", 0.01)
    config = {"quantize": [{"kind": "static"}], "select": {"batch": 1}}
    other = {"quantize": [{"kind": "dynamic"}], "select": {"batch": 1}, "seed": 3}
    first = run_report("run-1", drop, config=config, environment={"host": "a", "packages": {"onnx": "1"}})
    second = run_report("run-2", config=other, environment={"host": "b", "packages": {"onnx": "1"}}, winner="fp32")
    return first, second


def test_comparison_lists_what_differs_and_nothing_else(two: tuple[RunReport, RunReport]) -> None:
    compared = compare_runs(*two)
    assert (compared.first.winner, compared.second.winner) == ("small", "fp32")
    assert [(d.name, d.first, d.second) for d in compared.settings] == [
        ("quantize.0.kind", "static", "dynamic"),
        ("seed", None, 3),
    ]
    assert [(d.name, d.first, d.second) for d in compared.gates] == [
        ("small: accuracy.max_accuracy_drop", "failed: 0.03 <= 0.01", None)
    ]
    assert [d.name for d in compared.environment] == ["host"]
    same = compare_runs(two[0], two[0])
    assert (same.gates, same.settings, same.environment) == ((), (), ())


def test_comparison_leaves_out_what_a_run_that_stopped_has_not_reached(two: tuple[RunReport, RunReport]) -> None:
    stopped = two[1].replace(verdict="failed", stopped_at="quantize", winner=None, stages=())
    assert compare_runs(two[0], stopped).gates == ()


def test_comparison_warns_that_other_machines_have_other_latencies(two: tuple[RunReport, RunReport]) -> None:
    text = io.StringIO()
    compare_command._print(Console(file=text, width=80), compare_runs(*two))
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "Latencies are not comparable: host differs." in text.getvalue()
    assert "failed: 0.03 <= 0.01" in text.getvalue()


def test_comparison_says_where_a_run_stopped_and_first_which_gate_failed_it(two: tuple[RunReport, RunReport]) -> None:
    stages = run_report("r", Check.of("a.b", 0, "==", 0), Check.of("c.d", 1, "==", 0)).stages[1:2]
    failed = two[1].replace(verdict="failed", winner=None, stopped_at="structure", stages=stages)
    text, compared = io.StringIO(), compare_runs(two[0].replace(stages=()), failed)
    compare_command._print(Console(file=text, width=80), compared)
    assert [d.name for d in compared.gates] == ["small: c.d", "small: a.b"]
    rows = {line[1:8].strip(): line.split() for line in text.getvalue().splitlines()}
    assert rows["verdict"][-3:] == ["failed", "at", "structure"]
    assert {"model", "target"} <= rows.keys()


def test_quality_bears_the_name_of_its_metric(two: tuple[RunReport, RunReport]) -> None:
    text = io.StringIO()
    compare_command._print(Console(file=text, width=80), compare_runs(two[0].replace(metric="miou"), two[1]))
    rows = {line.split("  ")[0].strip(): line for line in text.getvalue().splitlines()}
    assert rows["mIoU"].split()[-1] == rows["accuracy"].split()[1] == "–"


def test_compare_prints_json_of_two_runs(
    tmp_path: Path,
    two: tuple[RunReport, RunReport],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    assert main(["compare", "run-1", "run-2"]) == 2
    assert "there is no report of a run 'run-1'" in capsys.readouterr().err
    for report in two:
        folder = tmp_path / ".gauntlet" / "runs" / report.run_id
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(report.model_dump_json())
    assert main(["compare", "run", "run-2"]) == 2
    assert "run: 2 runs start with it: run-2, run-1. Fix: write more of the id" in capsys.readouterr().err
    assert main(["compare", "run-1", "run-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["second"]["run_id"] == "run-2"


@pytest.mark.slow
def test_targets_lists_all_of_them_with_their_reasons(tmp_path: Path) -> None:
    done = called(tmp_path, "targets", "--json")
    assert done.returncode == 0, done.stderr
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert found["ort-cpu"]["available"]
    assert "gauntlet targets install openvino" in found["ort-openvino-f32"]["reason"]
    assert all(entry["available"] or entry["reason"] for entry in found.values())


def test_installation_of_an_unknown_environment_is_refused(tmp_path: Path) -> None:
    done = called(tmp_path, "targets", "install", "steam")
    assert done.returncode == 2
    assert "unknown environment 'steam'; available: openvino" in done.stderr


def test_targets_are_a_table_with_a_reason_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = (OrtCpu(), OrtCpu(threads=1), *map(by_name, ("openvino-bf16", "ort-openvino-f32")))
    monkeypatch.setattr(targets_command, "default_targets", lambda: few)
    done = called(tmp_path, "targets")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "yes" in lines["ort-cpu"] and "yes" in lines["ort-cpu-1t"]
    assert "no: its environment is not installed; install it with: gauntlet targets install" in lines["openvino-bf16"]
    assert "openvino" in lines["ort-openvino-f32"]  # the rest of the same reason, which is told once
    assert done.stdout.count("no: ") == 1

"""`gauntlet clean` removes what no kept run refers to, and nothing else."""

import json
import shutil
from pathlib import Path

import pytest
from harness import called, latest_report

from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.artifact import Artifact
from gauntlet.core.run_report import RunReport
from wings.housekeeping.cleanup import plan_cleanup


@pytest.fixture
def home(folder: Path) -> Home:
    """Hides the one of tests/flows: these tests change the home of a command."""
    return Home(folder / ".gauntlet")


def artifacts_of(report: RunReport) -> list[Artifact]:
    return [artifact for stage in report.stages for artifact in stage.artifacts.values()]


def leave_behind(home: Home) -> list[Path]:
    """Make what killed processes and forgotten runs leave; return the paths."""
    left = [
        home.store.root / "incoming" / "0123" / "model.onnx",
        home.store.root / "ab" / "abcd-model.onnx" / "model.onnx",
        home.results / "abcd.json",
        home.results / ".abcd.json.0123",
        home.work / "abcd" / "part.npz",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return left


def test_clean_removes_leftovers_and_keeps_what_a_run_refers_to(folder: Path, home: Home) -> None:
    report = latest_report(home)
    results = set(home.results.glob("*.json"))
    left = leave_behind(home)
    done = called(folder, "clean", "--dry-run")
    assert done.stdout.startswith("would remove 0 runs, 1 result, 1 artifact, 3 leftovers")
    assert all(path.exists() for path in left)
    done = called(folder, "clean")
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "removed 0 runs, 1 result, 1 artifact, 3 leftovers")
    assert not any(path.exists() for path in left)
    assert set(home.results.glob("*.json")) == results
    assert artifacts_of(report)
    assert all(home.store.is_intact(artifact) for artifact in artifacts_of(report))
    assert plan_cleanup(home).paths == ()


def test_samples_and_a_model_that_a_configuration_names_stay(tmp_path: Path) -> None:
    home = Home(tmp_path)
    kept = []
    for name in ("samples.npz", "model.skops", "test.npz", "forgotten.npz"):
        (tmp_path / name).write_text(name)
        kept.append(home.store.path(home.store.put(tmp_path / name)))
    *_, splits, forgotten = kept
    run = home.runs / "20260131-120000-digits-1f2e"
    run.mkdir(parents=True)
    config = {"data": {"path": str(kept[0])}, "train": {"model": str(kept[1])}, "extra_samples": [str(splits.parent)]}
    (run / "report.json").write_text(json.dumps({"config": config}))
    assert plan_cleanup(home).artifacts == (forgotten.parent,)


def test_old_runs_go_with_everything_that_only_they_refer_to(folder: Path, home: Home) -> None:
    assert called(folder, "clean", "--keep-runs", "0", "--older-than", "1").stdout.startswith("removed 0 runs")
    assert called(folder, "clean", "--keep-runs", "1").stdout.startswith("removed 0 runs")
    assert called(folder, "clean", "--keep-runs", "0").stdout.startswith("removed 1 run,")
    assert [path for path in home.store.root.rglob("*") if path.is_file()] == []
    assert [*home.results.glob("*"), *home.run_folders()] == []
    assert called(folder, "show").returncode == 2


def test_shared_artifact_stays_while_one_run_refers_to_it(home: Home) -> None:
    [run] = home.run_folders()
    shutil.copytree(run, run.with_name("20990101-000000-later"))
    cleanup = plan_cleanup(home, keep_runs=1)
    assert (cleanup.runs, cleanup.results, cleanup.artifacts) == ((run,), (), ())


def test_run_that_mlflow_has_not_received_stays(folder: Path, home: Home) -> None:
    [run] = home.run_folders()
    (run / "sent.json").unlink()
    done = called(folder, "clean", "--keep-runs", "0")
    assert f"kept, because MLflow has not received them (gauntlet sync): {run.name}" in done.stdout
    assert all(home.store.is_intact(artifact) for artifact in artifacts_of(latest_report(home)))


def test_clean_is_refused_while_a_run_is_in_progress(folder: Path, home: Home) -> None:
    with locked(home.in_use, shared=True):
        done = called(folder, "clean")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a run is in progress" in done.stderr

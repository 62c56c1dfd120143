"""The reports of five presets without what depends on time, machine or luck, and how two of them differ.

python tests/golden_reports.py [PRESET ...]     runs them (all five by default) and writes tests/golden/PRESET.json
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
from harness import FEW_SCENES, QUICK, command, latest_report, sets

from flows.record.home import Home
from gauntlet.core.run_report import BenchmarkRow, RunReport, StageEntry

GOLDEN = Path(__file__).with_name("golden")
RACE = (*(word for word in QUICK if not word.startswith("train.")), "benchmark.deploy_targets=[]")
STATIC = "quantize=[{kind: static, reduce_range: true}]"  # as much noise on every processor
RUNS = {
    "digits-resnet18": (
        "data.image_size=16",
        "data.test_images=100",
        "data.calibration_images=32",
        "train.epochs=1",
        "evaluate.min_accuracy=0",
        "evaluate.min_recall=0",
        "evaluate.max_generalization_gap=1",
        "accuracy.max_accuracy_drop=1",
        STATIC,
    ),
    "digits-small-cnn": ("train.epochs=6",),
    "digits-hog-svm": (),
    "digits-detection": (
        *FEW_SCENES,
        "train.epochs=3",
        "evaluate.min_score=0",
        "evaluate.max_generalization_gap=1",
        "accuracy.max_accuracy_drop=1",
        STATIC,
    ),
    "bring-your-own-onnx": (
        "train.model=brought.onnx",
        "data.path=samples.npz",
        "evaluate.min_accuracy=0",
        "evaluate.min_recall=0",
        "accuracy.max_accuracy_drop=1",
        STATIC,
    ),
}
"""What is smaller than in the preset, so that each takes about a minute."""

MEASURED = ("benchmark", "explain", "select", "confirm")
"""Stages of times and what follows from them: only the names of their facts stay."""
ERRORS = ("numerics", "accuracy", "portability")
"""Stages whose checks judge how exact integers are on this processor: their outcome is blanked for INT8 candidates."""
LUCK = re.compile(
    r"seconds|_ms$|bytes|size|digest|sha256|version|processor|instructions|runtime|run_id|epoch|stopped_early|history"
    r"|worst|^reason|^detail|remedy|flips|image$|index|peak|energy|temperature|first_divergence|differences|embedding"
    r"|^files$|^candidate$|^session$|^target$|^golden$|latencies|confusion|bins|curves|^lost$|^gained$|largest|^place|saturated|images_to_resolve|^kernels$|^changes$"
)
"""Keys of facts whose values are blanked."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stays of a value, and where: a list of objects is one object with the values of all of them."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            place = f"{path}.{key}".lstrip(".")
            yield from [(place, "...")] if LUCK.search(str(key)) else leaves(inner, place)
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path, leaf(value)


def leaf(value: Any) -> Any:
    """Return a value without what depends on luck: fractions, and sentences with their numbers."""
    if isinstance(value, float) or value in ("Infinity", "-Infinity", "NaN"):
        return "number"
    if isinstance(value, str):
        return "text" if " " in value else value
    if isinstance(value, (list, tuple)):
        return "numbers" if value and isinstance(value[0], float) else [leaf(item) for item in value]
    return value


def merged(pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Return each path once; one with several values has the list of the different ones."""
    values: dict[str, list[Any]] = {}
    for path, value in pairs:
        if value not in values.setdefault(path, []):
            values[path].append(value)
    return {path: items[0] if len(items) == 1 else sorted(items, key=str) for path, items in values.items()}


def frozen_stage(entry: StageEntry) -> dict[str, Any]:
    """Return a stage's facts, checks and artifacts."""
    facts = dict.fromkeys(entry.facts, "...") if entry.stage in MEASURED else merged(leaves(entry.facts))
    uncertain = entry.stage == "calibrate" or (entry.candidate is not None and entry.stage in ERRORS)
    checks = {}
    for check in () if entry.stage in MEASURED else entry.checks:
        outcome = "depends" if uncertain else "passed" if check.passed else "failed"
        checks[check.name] = f"{check.op} {check.limit:g} {check.unit}".strip() + f", {check.severity}: {outcome}"
    artifacts = {} if entry.stage in MEASURED else {name: a.name for name, a in entry.artifacts.items()}
    return {"facts": facts, "checks": checks, "artifacts": artifacts}


def frozen(report: RunReport) -> dict[str, Any]:
    """Return what stays of a run's report."""
    names = [f"{s.stage} of {s.candidate}" if s.candidate else s.stage for s in report.stages]
    candidates = {}
    for candidate in report.candidates:
        raced = bool(candidate.benchmark)
        candidates[candidate.name] = {
            "parent": candidate.parent,
            "status": "raced" if raced else candidate.status,
            "accuracy": candidate.accuracy is not None,
            "model": candidate.artifact.name if candidate.artifact else None,
            "rows": [f"{row.target}, batch {row.batch}" for row in candidate.benchmark],
        }
    return {
        "report": [f"{key}: {type(value).__name__}" for key, value in report if key not in ("winner", "stopped_at")],
        "benchmark row": sorted(BenchmarkRow.model_fields),
        "verdict": report.verdict,
        "metric": report.metric,
        "environment": sorted(report.environment),
        "links": sorted(report.links),
        "stages": names,
        "candidates": candidates,
        **{f"stage {name}": frozen_stage(entry) for name, entry in zip(names, report.stages, strict=True)},
    }


def differences(golden: Mapping[str, Any], current: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield one line for each thing that is missing, new or changed."""
    for key in [*golden, *(key for key in current if key not in golden)]:
        place = f"{path} > {key}" if path else key
        if key not in current:
            yield f"missing: {place} = {shown(golden[key])}"
        elif key not in golden:
            yield f"new:     {place} = {shown(current[key])}"
        elif isinstance(golden[key], dict) and isinstance(current[key], dict):
            yield from differences(golden[key], current[key], place)
        elif golden[key] != current[key]:
            yield f"changed: {place}: {shown(golden[key])} -> {shown(current[key])}"


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else text[:300] + " ..."


def written(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each key."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = indent + " "
    lines = (f"{inner}{json.dumps(key)}: {written(item, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def bring_model(folder: Path) -> None:
    """Write a small classifier and samples with labels, as a user has them."""
    model = onnx_text.model("""
        brought (float[n,3,12,12] x) => (float[n,6] y)
        <float[8,3,3,3] w, float[8] b, float[6,8] v, float[6] c> {
            d = Identity(x) h = Conv<kernel_shape = [3, 3]>(d, w, b) r = Relu(h)
            p = GlobalAveragePool(r) f = Flatten(p) y = Gemm<transB = 1>(f, v, c)
        }
    """)
    onnx.save(model, folder / "brought.onnx")
    samples = np.random.default_rng(7).standard_normal((60, 3, 12, 12)).astype(np.float32)
    np.savez(folder / "samples.npz", x=samples, labels=np.arange(60) % 6)


def run(preset: str, folder: Path) -> dict[str, Any]:
    """Run a preset as a user does and return what stays of its report; the folder is its home."""
    bring_model(folder)
    lock = str(folder / "host.lock")  # what is measured decides nothing, so it waits for no benchmark beside it
    done = command(folder, "run", preset, *sets(*RACE, *RUNS[preset]), GAUNTLET_HOST_LOCK=lock)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return frozen(latest_report(Home(folder / ".gauntlet")))


def golden(preset: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{preset}.json").read_text())


def main() -> None:
    for preset in sys.argv[1:] or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            current = run(preset, Path(folder))
        path = GOLDEN / f"{preset}.json"
        if path.exists():
            print(f"{preset}:", *(differences(golden(preset), current)), sep="\n  ")
        path.write_text(written(current) + "\n")


if __name__ == "__main__":
    main()

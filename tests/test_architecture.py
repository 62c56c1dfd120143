"""The floors of the house, and what may be imported how early."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
STAGES = ("tasks.train", "tasks.export", "tasks.quantize", "tasks.optimize", "tasks.benchmark", "tasks.render.html")


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_imports_only_point_down() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", [*STAGES, "configs.load", "configs.schema"])
def test_stage_loads_no_framework_before_it_works(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert not {"torch", "torchvision", "tensorflow", "jax", "sklearn", "matplotlib", "prefect", "mlflow"} & loaded


def test_worker_is_numpy_and_the_runtime() -> None:
    loaded = modules_after("import tasks.runtime.worker, tasks.runtime.calls, tasks.runtime.engines.ort")
    assert {"numpy", "onnxruntime"} <= loaded
    assert not {"pydantic", "onnx", "torch", "prefect", "mlflow", "sklearn", "rich"} & loaded


def test_no_source_file_is_too_long_to_hold_one_idea() -> None:
    files = [p for folder in ("configs", "flows", "tasks") for p in (PROJECT / folder).rglob("*.py")]
    lengths = {str(p.relative_to(PROJECT)): len(p.read_text().splitlines()) for p in files}
    assert not {name: n for name, n in lengths.items() if n > 300}
    assert sorted(lengths.values())[len(lengths) // 2] <= 110

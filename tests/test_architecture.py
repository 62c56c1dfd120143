"""The floors of the house, and what may be imported how early."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from loaded_modules import modules_after
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gauntlet.core.kinds import kinds
from gauntlet.core.shipping import shipping_stages
from gauntlet.core.user_code import imported_modules, installed_packages

PROJECT = Path(__file__).parents[1]
FLOORS = ("flows", "configs", "frameworks", "tasks", "serving", "gauntlet", "wings")
STAGES = (
    "tasks.train",
    "tasks.export",
    "tasks.quantize",
    "tasks.optimize",
    "tasks.benchmark",
    "gauntlet.reporting.html_report",
)
DEBIAN_12 = "3.11.2"
"""Its Python, the oldest that many machines have."""

NOT_DECLARED = {
    "jax2onnx": "it asks for a second onnxruntime, so `make jax` installs it without its dependencies",
    "openvino": "it is in an environment of its own",
    "triton": "it comes with PyTorch where there is one",
}


def test_imports_only_point_down() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", [*STAGES, "configs.loader", "configs.schema"])
def test_stage_loads_no_framework_before_it_works(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert not {"torch", "torchvision", "tensorflow", "jax", "sklearn", "matplotlib", "prefect", "mlflow"} & loaded


def test_worker_is_numpy_and_the_runtime() -> None:
    loaded = modules_after(
        "import gauntlet.runtime.worker, gauntlet.runtime.batched_inference, gauntlet.runtime.engines.ort"
    )
    assert {"numpy", "onnxruntime"} <= loaded
    assert not {"pydantic", "onnx", "torch", "prefect", "mlflow", "sklearn", "rich"} & loaded


def test_file_beside_a_deployed_flow_hides_no_package() -> None:
    """A Prefect worker puts the folder of the flow first on `sys.path` and leaves it there."""
    files = [PROJECT / "prefect.yaml", *PROJECT.glob("wings/*/prefect.yaml")]
    folders = {name for file in files for name in re.findall(r"entrypoint: (\S+)/\w+\.py:", file.read_text())}
    paths = (
        path for folder in folders for path in (PROJECT / folder).iterdir() if path.is_dir() or path.suffix == ".py"
    )
    children = {path.stem for path in paths} - {"__init__", "__pycache__"}
    assert {"pipeline", "record"} <= children
    assert not children & {*sys.stdlib_module_names, *metadata.packages_distributions()}


def test_no_source_file_is_too_long_to_hold_one_idea() -> None:
    """300 lines are a smell, not a reason to cut a thought in two; 350 are too many."""
    files = [p for folder in FLOORS for p in (PROJECT / folder).rglob("*.py")]
    lengths = {str(p.relative_to(PROJECT)): len(p.read_text().splitlines()) for p in files}
    assert not {name: n for name, n in lengths.items() if n > 350}
    assert sorted(lengths.values())[len(lengths) // 2] <= 110


FLOW = "\n".join(
    (PROJECT / "flows" / name).read_text() for name in ("pipeline.py", "search/base.py", "search/candidates.py")
)


def stages_of_the_pipeline() -> set[str]:
    """Return the stages that the flow calls: the first argument of `stage` and `make`."""
    tree = ast.parse(FLOW)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return {
        call.args[0].id
        for call in calls
        if call.func.attr in ("stage", "make") and isinstance(call.args[0], ast.Name)  # type: ignore[attr-defined]
    }


def boxes_of_the_diagram() -> list[list[str]]:
    """Return the stages in each box of the README's diagram, in the order of its text."""
    diagram = re.search(r"```mermaid\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    return [box.split(", ") for box in re.findall(r"\w+\[(.*?)\]", diagram[1])]


def test_pipeline_tasks_and_diagram_are_the_same_stages() -> None:
    modules = [*(PROJECT / "tasks").glob("*.py"), *(path.parent for path in (PROJECT / "tasks").glob("*/__init__.py"))]
    entries = {path.stem for path in modules} - {"__init__"}
    assert stages_of_the_pipeline() == entries
    brought = [*(stage.function for stage in shipping_stages().values()), *kinds("explanation").values()]
    drawn = [*chain(*boxes_of_the_diagram())]
    assert sorted(drawn) == sorted(entries | {function.__name__ for function in brought})
    assert len(boxes_of_the_diagram()) <= 10


def test_diagram_has_the_order_of_the_flow() -> None:
    """The main line's stages, in the order of the calls; candidates' branches have none."""
    flow = (PROJECT / "flows" / "pipeline.py").read_text()
    called = [name for name in re.findall(r"line\.(?:stage|make)\(\s*(\w+),", flow) if f"import {name}" in flow]
    drawn = [stage for box in boxes_of_the_diagram() for stage in box if stage in called]
    assert {"data", "train", "benchmark", "package"} <= {*called}
    assert drawn == called


def test_stage_bears_the_name_of_its_module() -> None:
    for name in stages_of_the_pipeline():
        assert f"from tasks.{name} import" in FLOW


SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
NAMED = chain(SETTINGS["dependencies"], *SETTINGS["optional-dependencies"].values())
DECLARED = {canonicalize_name(Requirement(line).name) for line in NAMED}


def undeclared(source: bytes) -> set[str]:
    """Return the packages that a source imports and that pyproject.toml does not name."""
    tops = {module.partition(".")[0] for module in imported_modules(source)}
    brought = installed_packages()
    others = tops - sys.stdlib_module_names - {*FLOORS} - NOT_DECLARED.keys()
    return {top for top in others if not DECLARED & {canonicalize_name(name) for name in brought.get(top, [top])}}


def test_every_imported_package_is_declared() -> None:
    files = [p for folder in FLOORS for p in (PROJECT / folder).rglob("*.py")]
    assert not {str(p.relative_to(PROJECT)): found for p in files if (found := undeclared(p.read_bytes()))}


def test_every_installed_package_takes_the_python_of_debian_12() -> None:
    needs = {package.name: package.metadata.get("Requires-Python") or "" for package in metadata.distributions()}
    assert [f"{name} {text}" for name, text in needs.items() if DEBIAN_12 not in SpecifierSet(text)] == []
    assert DEBIAN_12 not in SpecifierSet(">=3.11.5")  # as a pin once asked for: pip searched for hours

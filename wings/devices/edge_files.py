"""A bundle for a device: ONNX Runtime's own format, the operators that it needs, and an example in C++ and Python."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gauntlet.bundle.bundle import CONTRACT, MODEL, Bundle
from gauntlet.bundle.delivery import made_complete
from gauntlet.bundle.loading import differences
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.model_file import model_files
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.resources import usable_memory_bytes
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from wings.devices.deliveries import require_portable

ASSETS = Path(__file__).with_name("edge")
MODEL_FILE, OPERATORS_FILE = "model.ort", "required_operators.config"
TIMEOUT_S = 600.0
ONNX_TYPES = {"float32": "FLOAT", "float64": "DOUBLE"}
CPP_TYPES = {"float32": "float", "float64": "double", "float16": "Ort::Float16_t", "bool": "bool"}


def write_edge_files(bundle: Bundle, target: Path) -> int:
    """Write the folder; return how many operators the model needs.

    Raises:
        ConfigError: when the folder exists, or the model has tensors that the examples cannot hold.
        StageError: when the model cannot be converted, or gives other outputs than the golden ones afterwards.
    """
    case = bundle.golden()
    require_portable(bundle, case, "--edge")
    with made_complete(target, "--edge") as folder:
        folder.mkdir()
        _convert(bundle, folder)
        session = open_session(folder / MODEL_FILE)
        inference = batched_inference(session, case.inputs)
        limit = bundle.contract.golden_tolerance
        for golden in differences(inference.run(1), case.outputs):
            if not golden.max_rel_error <= limit:
                problem = f"golden output {golden.output!r} differs by {golden.max_rel_error:.3g}, allowed {limit:.3g}"
                raise StageError(f"--edge: after the conversion to {MODEL_FILE}, {problem}")
        feed = inference.feed(0, 1)
        names = list(case.outputs)
        results = dict(zip(names, map(np.asarray, session.run(names, feed)), strict=True))
        (folder / "golden").mkdir()
        tensors = {"inputs": _write("input", feed, folder), "outputs": _write("output", results, folder)}
        shutil.copyfile(bundle.folder / CONTRACT, folder / CONTRACT)
        _write_texts(bundle, tensors, folder)
        return _count_operators(folder / OPERATORS_FILE)


def _convert(bundle: Bundle, folder: Path) -> None:
    """Convert in a process of its own, because ONNX Runtime's tool writes to the terminal and sets up logging."""
    work = folder / "work"
    for path in model_files(bundle.model):
        place = work / path.relative_to(bundle.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    try:
        run_in_subprocess(convert_to_ort, work / MODEL, timeout_s=TIMEOUT_S, memory_bytes=usable_memory_bytes())
    except StageError as error:
        raise StageError(f"--edge: ONNX Runtime cannot convert the model: {one_line(error)}") from error
    (work / MODEL_FILE).rename(folder / MODEL_FILE)
    [config] = work.glob("*.config")
    operators = [line for line in config.read_text().splitlines() if not line.startswith("#")]  # these name a folder
    (folder / OPERATORS_FILE).write_text("\n".join([f"# Generated from {MODEL_FILE}", *operators]) + "\n")
    shutil.rmtree(work)


def convert_to_ort(model: Path) -> None:
    """Write the model in ONNX Runtime's format, optimized for any processor, and its operators and types beside it."""
    from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

    convert_onnx_models_to_ort(
        model, model.parent, optimization_styles=[OptimizationStyle.Fixed], enable_type_reduction=True
    )


def _write(kind: str, arrays: NamedArrays, folder: Path) -> list[dict[str, object]]:
    """Write each array as raw numbers; return what the examples say of it."""
    tensors: list[dict[str, object]] = []
    for number, (name, array) in enumerate(arrays.items()):
        file = f"golden/{kind}-{number}.bin"
        (folder / file).write_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        tensors.append({"name": name, "file": file, "shape": array.shape, **_type_names(array)})
    return tensors


def _type_names(array: Array) -> dict[str, str]:
    dtype = array.dtype.name
    return {
        "dtype": dtype,
        "onnx_type": ONNX_TYPES.get(dtype, dtype.upper()),
        "cpp_type": CPP_TYPES.get(dtype, f"{dtype}_t"),
        "cpp_number": "float" if dtype == "float16" else "double",
    }


def _write_texts(bundle: Bundle, tensors: Mapping[str, object], folder: Path) -> None:
    environment = Environment(
        loader=FileSystemLoader(ASSETS), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    contract = bundle.contract
    values = {"name": contract.name, "digest": bundle.digest, "runtime": contract.runtime, **tensors}
    for template in ("example.py", "example.cc", "README.md"):
        text = environment.get_template(f"{template}.j2").render(tolerance=contract.golden_tolerance, **values)
        (folder / template).write_text(text, encoding="utf-8")


def _count_operators(config: Path) -> int:
    from onnxruntime.tools.reduced_build_config_parser import parse_config

    required, _ = parse_config(str(config))
    return sum(len(operators) for by_opset in required.values() for operators in by_opset.values())

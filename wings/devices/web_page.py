"""A bundle as a static page: ONNX Runtime Web runs the model on the visitor's device, after its golden outputs."""

import json
import shutil
from pathlib import Path

import numpy as np

from gauntlet import bundle as bundle_package
from gauntlet.bundle.bundle import CONTRACT, MODEL, Bundle
from gauntlet.bundle.delivery import made_complete
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import GoldenCase
from gauntlet.onnx_model.model_file import model_files
from gauntlet.targets import environments
from wings.devices.deliveries import require_portable

ASSETS = Path(__file__).with_name("web")
SHARED = Path(bundle_package.__file__).with_name("page")
"""What `gauntlet serve` draws with, too."""
ENVIRONMENT = "web"
RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")


def write_web_page(bundle: Bundle, target: Path) -> None:
    """Write a folder that any web server can serve as it is; it loads nothing from elsewhere.

    Raises:
        ConfigError: when the folder exists, the model cannot run in a browser, or ONNX Runtime Web is not installed.
    """
    if reason := environments.missing(ENVIRONMENT):
        raise ConfigError(f"--web: {reason}")
    case, signature = bundle.golden(), bundle.contract.signature
    require_portable(bundle, case, "--web")
    types = {spec.name: spec.dtype for spec in signature.inputs}  # the samples of a table have wider ones
    case = GoldenCase({name: array.astype(types[name]) for name, array in case.inputs.items()}, case.outputs)
    weights = [path.relative_to(bundle.folder).as_posix() for path in model_files(bundle.model)[1:]]
    with made_complete(target, "--web") as folder:
        copy_assets(folder)
        for name in (MODEL, CONTRACT, *weights):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / name, folder / name)
        _copy_runtime(folder / "ort")
        page = {
            "digest": bundle.digest,
            "batch": _batch(signature, case),
            "takes_images": _takes_images(signature),
            "external_data": weights,
            "tensors": _write_golden(case, folder / "golden.bin"),
        }
        (folder / "page.json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


def copy_assets(folder: Path) -> None:
    """Write what is the same on every page."""
    shutil.copytree(ASSETS, folder)
    for name in ("drawing.js", "page.css"):
        shutil.copyfile(SHARED / name, folder / name)


def _batch(signature: Signature, case: GoldenCase) -> int | None:
    """Return the samples of a call: None for any number, 0 where a sample is a whole input without a batch axis."""
    spec = signature.inputs[0]
    if case.inputs[spec.name].ndim > len(spec.shape):
        return 0
    return spec.shape[0] if isinstance(spec.shape[0], int) else None


def _takes_images(signature: Signature) -> bool:
    how = signature.preprocessing
    fits = len(signature.inputs) == 1 and signature.inputs[0].dtype in ("float32", "uint8")
    return fits and how is not None and how.hog is None and len(how.mean) in (1, 3)


def _copy_runtime(folder: Path) -> None:
    package = environments.folder(ENVIRONMENT) / "node_modules" / "onnxruntime-web"
    folder.mkdir()
    for name in RUNTIME_FILES:
        shutil.copyfile(package / "dist" / name, folder / name)
    shutil.copyfile(package / "package.json", folder / "package.json")  # its version and license


def _write_golden(case: GoldenCase, path: Path) -> list[dict[str, object]]:
    """Write inputs and outputs one behind the other, little endian; return where each tensor is."""
    tensors: list[dict[str, object]] = []
    with path.open("wb") as file:
        for group, arrays in (("inputs", case.inputs), ("outputs", case.outputs)):
            for name, array in arrays.items():
                place = {"dtype": array.dtype.name, "shape": list(array.shape), "offset": file.tell()}
                tensors.append({"group": group, "name": name, **place})
                file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return tensors

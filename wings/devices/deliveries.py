"""What `gauntlet bundle` writes instead of a copy. The command's parser loads this module, so imports are inside."""

from pathlib import Path
from typing import TYPE_CHECKING

from gauntlet.core.errors import ConfigError

if TYPE_CHECKING:
    from gauntlet.bundle.bundle import Bundle
    from gauntlet.datasets.golden import GoldenCase

NUMBER_TYPES = ("bool", "float16", "float32", "float64", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)))


def web(bundle: "Bundle", target: Path) -> list[str]:
    """Write a static page that runs the model in the browser."""
    from wings.devices.web_page import write_web_page

    write_web_page(bundle, target)
    serve = f"python -m http.server --bind 127.0.0.1 --directory {target} 8000"
    return [f"{target}: a static page", f"Try it: {serve}"]


def edge(bundle: "Bundle", target: Path) -> list[str]:
    """Write the model in ONNX Runtime's format with its operator list and examples."""
    from gauntlet.reporting.text_format import counted, size
    from wings.devices.edge_files import MODEL_FILE, write_edge_files

    operators = write_edge_files(bundle, target)
    written = f"{size((target / MODEL_FILE).stat().st_size)}, {counted(operators, 'operator')}"
    return [f"{target}: {MODEL_FILE}, {written}", f"Try it: python {target / 'example.py'}"]


def trainable(bundle: "Bundle", target: Path) -> list[str]:
    """Write a classifier split at its last layer, with that layer's training step."""
    from wings.devices.training_step import STEP, write_trainable

    sizes = write_trainable(bundle, target).sizes()
    use = f"python {target / 'example.py'} SAMPLES.npz STEPS LEARNING_RATE"
    return [f"{target}: {STEP}, {sizes['classes']} classes of {sizes['features']} features", f"Use it: {use}"]


def require_portable(bundle: "Bundle", case: "GoldenCase", option: str) -> None:
    """Raise `ConfigError` for a model that needs more than the runtime itself, or has tensors of no number type."""
    if libraries := bundle.contract.signature.operator_libraries:
        names = ", ".join(library.name for library in libraries)
        raise ConfigError(
            f"{option}: the model needs the operator libraries {names}, which cannot be delivered with it"
        )
    for name, array in (*case.inputs.items(), *case.outputs.items()):
        if array.dtype.name not in NUMBER_TYPES:
            raise ConfigError(f"{option}: {name!r} is {array.dtype.name}; allowed are {', '.join(NUMBER_TYPES)}")

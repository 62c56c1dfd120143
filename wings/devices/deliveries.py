"""What `gauntlet bundle` writes instead of a copy. The command's parser loads this module, so imports are inside."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gauntlet.bundle.bundle import Bundle


def web(bundle: "Bundle", target: Path) -> list[str]:
    """Write a static page that runs the model in the browser."""
    from wings.devices.web_page import write_web_page

    write_web_page(bundle, target)
    serve = f"python -m http.server --bind 127.0.0.1 --directory {target} 8000"
    return [f"{target}: a static page", f"Try it: {serve}"]


def edge(bundle: "Bundle", target: Path) -> list[str]:
    """Write the model in ONNX Runtime's format with its operator list and examples."""
    from gauntlet.reporting.text_format import size
    from wings.devices.edge_files import MODEL_FILE, write_edge_files

    operators = write_edge_files(bundle, target)
    total = size((target / MODEL_FILE).stat().st_size)
    counted = f"{operators} operator{'s' if operators != 1 else ''}"
    return [f"{target}: {MODEL_FILE}, {total}, {counted}", f"Try it: python {target / 'example.py'}"]


def trainable(bundle: "Bundle", target: Path) -> list[str]:
    """Write a classifier split at its last layer, with that layer's training step."""
    from wings.devices.training_step import STEP, write_trainable

    sizes = write_trainable(bundle, target).sizes()
    use = f"python {target / 'example.py'} SAMPLES.npz STEPS LEARNING_RATE"
    return [f"{target}: {STEP}, {sizes['classes']} classes of {sizes['features']} features", f"Use it: {use}"]

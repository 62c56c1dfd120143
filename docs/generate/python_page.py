"""The page of the Python interface, from the docstrings of everything that is public."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from markdown_text import sentence, table, wrapped

import gauntlet
from gauntlet.core.errors import PipelineError
from wings.python_api.run_result import ReportPage, RunResult, Winner

INTRODUCTION = '''\
`import gauntlet` has everything that is public in Python. The functions have the words and the
defaults of the [commands](command-line.md). Where a command ends with an exit code, a function
raises an [error](#errors). The examples on this page need a model and samples:

```python
import gauntlet
import numpy as np
import onnx

model = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 18]>
small (float[batch, 64] pixels) => (float[batch, 10] scores) {
    hidden = MatMul(pixels, w0)
    active = Relu(hidden)
    scores = MatMul(active, w1)
}
""")
random = np.random.default_rng(0)
for name, shape in {"w0": (64, 512), "w1": (512, 10)}.items():
    weights = random.standard_normal(shape).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
onnx.save(model, "model.onnx")
samples = random.standard_normal((60, 64)).astype(np.float32)
```
'''
RESULTS = (RunResult, Winner, ReportPage)
SECTIONS = re.compile(r"\n\n(Args|Returns|Raises):\n")
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
ORDER = ("run", "quantize", "show", "load", "bench", "diagnose")


def python_page() -> str:
    """Return the page; raise `ValueError` where it would not be what `gauntlet.__all__` has."""
    public = {name: getattr(gauntlet, name) for name in gauntlet.__all__}
    errors = {name: one for name, one in public.items() if isinstance(one, type) and issubclass(one, PipelineError)}
    if {*ORDER, *errors} != {*public}:
        raise ValueError(f"docs/generate/python_page.py orders {ORDER}; public are {[*public]}")
    blocks = ["# Python", INTRODUCTION.rstrip()]
    for name in ORDER:
        blocks += function(name, public[name])
    blocks.append("## What a run returns")
    for kind in RESULTS:
        blocks += result(kind)
    rows = [(f"`gauntlet.{name}`", summary(one), str(one.exit_code)) for name, one in errors.items()]
    blocks += ["## Errors", table(("error", "meaning", "exit code of the command"), rows)]
    return "\n\n".join(blocks) + "\n"


def function(name: str, one: Any) -> Iterator[str]:
    """Yield a function's heading, its signature, what its docstring says, and its example."""
    yield f"## gauntlet.{name}"
    signature = inspect.signature(one)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    yield f"```text\ngauntlet.{name}{inspect.Signature(plain)}\n```"
    text, *parts = SECTIONS.split(inspect.getdoc(one) or "")
    for part in text.split("\n\n"):
        yield part if part.startswith("```") else wrapped(part)
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        rows = [(f"`{entry}`", sentence(unwrapped(meaning))) for entry, meaning in ENTRY.findall(f"{body}\n")]
        heading = {"Args": "argument", "Raises": "error"}.get(title, "")
        yield table((heading, "meaning" if title == "Args" else "when"), rows) if rows else wrapped(f"Returns {body}")


def result(kind: type) -> Iterator[str]:
    """Yield a class's heading, and its public attributes."""
    yield f"### {kind.__name__}"
    yield wrapped(summary(kind))
    public = {name: one for name, one in vars(kind).items() if not name.startswith("_") and inspect.getdoc(one)}
    rows = [(f"`{name}{'(path)' * inspect.isfunction(one)}`", summary(one)) for name, one in public.items()]
    if rows:
        yield table(("attribute", "meaning"), rows)


def summary(one: Any) -> str:
    """Return the first paragraph of a docstring."""
    return unwrapped((inspect.getdoc(one) or "").partition("\n\n")[0])


def unwrapped(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())

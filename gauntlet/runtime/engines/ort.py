"""ONNX Runtime, with any of its execution providers."""

import glob
import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.operator_types import FLOAT_OPS, INTEGER_OPS, QUANTIZED_OPS
from gauntlet.runtime.engines.base import ONE_RELU, Engine
from gauntlet.runtime.session import open_session

CPU = "CPUExecutionProvider"
TYPES = {"float": "f32", "float16": "f16", "bfloat16": "bf16", "double": "f64"}
ONE_BY_ONE = {CPU, "CUDAExecutionProvider"}
"""Providers that run one node after the other; the others compile parts of the graph."""
RECORD_PLACEMENT = {"session.record_ep_graph_assignment_info": "1"}
CAUSES = (re.compile(r"CUDA failure \d+: [^;\n]+"), re.compile(r"(?<=with error: ).+"))
"""What a device says (ONNX Runtime puts 400 characters of its own source in front), and what the loader says."""


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return why the provider cannot run here: a session that asks for it silently gets the CPU, so one is asked."""
    provider = options.get("provider", CPU)
    if provider not in ort.get_available_providers():
        return f"onnxruntime {ort.__version__} was built without {provider}"
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            got = _session(ONE_RELU, 1, options).get_providers()
            why = "the session got " + ", ".join(got)
        except StageError as error:
            got, why = [], str(error)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        printed = said.read().decode(errors="replace")
    return None if provider in got else provider_failure(printed, why)


def provider_failure(printed: str, why: str) -> str:
    """Return in one line why a session did not get its provider: the first cause that was printed or raised."""
    found = next((found[0] for known in CAUSES if (found := known.search(f"{printed}\n{why}"))), why)
    return " ".join(found.rpartition("refuses the model: ")[2].split())[:200]


def _session(model: Path | bytes, threads: int, options: dict[str, Any], profile_to: Path | None = None) -> Any:
    provider = options.get("provider", CPU)
    os.environ.update(options.get("environment", {}))
    if provider != CPU and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # the CUDA libraries that PyTorch brought
    provider_options = with_model_folders(options.get("provider_options", {}), model)
    if "threads_option" in options:  # a provider with threads of its own
        provider_options[options["threads_option"]] = str(threads)
    return open_session(
        model,
        level=options.get("level", "all"),
        threads=options.get("threads", threads),
        parallel=options.get("parallel", False),
        arena=options.get("arena", True),
        profile_to=profile_to,
        provider=provider,
        provider_options=provider_options,
        others=options.get("others", ()),
        settings=RECORD_PLACEMENT | options.get("settings", {}),
    )


def with_model_folders(provider_options: dict[str, str], model: Path | bytes) -> dict[str, str]:
    """Return a provider's options, with folders of this model's own, which are made, where they say `{model}`."""
    found = dict(provider_options)
    for name, value in found.items():
        if "{model}" in value:
            found[name] = value.replace("{model}", _digest(model)[:16])
            Path(found[name]).mkdir(parents=True, exist_ok=True)
    return found


@lru_cache
def _digest(model: Path | bytes) -> str:
    """Return the SHA-256 of a model and of the files of weights beside it, whose names begin with its own."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    found = hashlib.sha256()
    for path in sorted(model.parent.glob(f"{glob.escape(model.name)}*")):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


class OrtEngine(Engine):
    """A session."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        self.runtime = f"onnxruntime {ort.__version__}"
        self.asked = options.get("provider", CPU)
        self._again: Callable[[Path], Any] = lambda prefix: _session(model, threads, options, prefix)
        self.session = _session(model, threads, options)
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()
        got = self.session.get_providers()
        if self.asked not in got and options.get("refuse_fallback", True):
            raise StageError(f"the session asked for {self.asked} and got {', '.join(got)}")
        self.device = options.get("device") if self.asked in got else None

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Bind inputs and outputs to the device, where there is one: the time holds no copies between memories."""
        names = [port.name for port in self.get_outputs()]
        if self.device is None:
            return partial(self.session.run, names, feed), lambda values: [np.asarray(value) for value in values]
        binding = self.session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, self.device, 0))
        for name in names:
            binding.bind_output(name, self.device, 0)
        run = partial(self.session.run_with_iobinding, binding)  # it returns when the device is done
        return run, lambda _: [np.array(value) for value in binding.copy_outputs_to_cpu()]

    def run(self, names: Sequence[str], feed: NamedArrays) -> list[Any]:
        """Return the named outputs of one call, made as the timed ones are; without a device, any kind of output."""
        return super().run(names, feed) if self.device else self.session.run(list(names), feed)

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the nodes by provider, as the session assigned them; before 1.31, as a profiled call shows them.

        A profiled call also shows the kernels of a quantised model. What a provider compiled is one node there, whose
        operator nobody knows, so such a provider's kernels are not counted.
        """
        nodes: dict[str, list[list[str]]] = {}
        known = hasattr(self.session, "get_provider_graph_assignment_info")
        for part in self.session.get_provider_graph_assignment_info() if known else ():
            nodes.setdefault(part.ep_name, []).extend([node.name, node.op_type] for node in part.get_nodes())
        told = self.asked in ONE_BY_ONE and any(kind in QUANTIZED_OPS for found in nodes.values() for _, kind in found)
        if known and not told:
            return {"asked": self.asked, "nodes": nodes}
        with tempfile.TemporaryDirectory() as folder:
            events = json.loads(Path(self.profile(feed, 1, folder)).read_text())
        ran = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
        for event in ran if not known else ():
            node = [event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]]
            nodes.setdefault(event["args"]["provider"], []).append(node)
        kernels = Counter(kernel for event in ran if self.asked in ONE_BY_ONE and (kernel := _kernel(event["args"])))
        return {"asked": self.asked, "nodes": nodes, "kernels": dict(kernels)}

    def profile(self, feed: NamedArrays, calls: int, folder: str) -> str:
        """Run a second session with the profiler on; return its trace."""
        session = self._again(Path(folder) / "trace")
        names = [port.name for port in session.get_outputs()]
        for _ in range(calls):
            session.run(names, feed)
        return str(session.end_profiling())


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> OrtEngine:
    """Load a model; `options` are those of the target."""
    return OrtEngine(model, threads, options)


def _kernel(event: dict[str, Any]) -> str | None:
    """Return the type that a profiled kernel multiplies in, where it does."""
    if event["op_name"] in INTEGER_OPS:
        return "i8"
    kinds = [kind for value in event["input_type_shape"] for kind in value]
    return TYPES.get(kinds[0]) if event["op_name"] in FLOAT_OPS and kinds else None

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
"""Providers that run node by node; the others compile parts of the graph."""
MEMORY_OPTIONS = ("arena", "memory_pattern")
SESSION_OPTIONS = ("level", "threads", "inter_op_threads", "others", *MEMORY_OPTIONS)
RECORD_PLACEMENT = {"session.record_ep_graph_assignment_info": "1"}
CAUSES = (re.compile(r"CUDA failure \d+: [^;\n]+"), re.compile(r"(?<=with error: ).+"))
"""The device's message, which follows 400 characters of ONNX Runtime's source, and the loader's."""


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return why a provider cannot run here, by opening a session, which silently falls back to the CPU."""
    required = options.get("required", [options.get("provider", CPU)])
    for provider in required:
        if provider not in ort.get_available_providers():
            return f"onnxruntime {ort.__version__} was built without {provider}"
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            got = _session(ONE_RELU, 1, options).get_providers()
            why = "the session got " + ", ".join(got)
        except StageError as error:
            got, why = [], str(error)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        log.seek(0)
        printed = log.read().decode(errors="replace")
    lost = [provider for provider in required if provider not in got]
    if not lost:
        return None
    return (f"{lost[0]}: " if len(required) > 1 else "") + provider_failure(printed, why)


def check_operators(model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return where a session would run the nodes of the graph as it is; see `gauntlet.runtime.worker`."""
    accepted, runtime = _accepted(options), f"onnxruntime {ort.__version__}"
    try:
        session = _session(model, 1, options | {"level": "off"})
    except StageError as error:
        return {"runtime": runtime, "nodes": None, "elsewhere": {}, "refused": str(error)}
    elsewhere: dict[str, Counter[str]] = {}
    count = 0
    for part in session.get_provider_graph_assignment_info():
        operators = [node.op_type for node in part.get_nodes()]
        count += len(operators)
        if part.ep_name not in accepted:
            elsewhere.setdefault(part.ep_name, Counter()).update(operators)
    return {"runtime": runtime, "nodes": count, "elsewhere": elsewhere, "refused": None}


def provider_failure(printed: str, why: str) -> str:
    """Return in one line why a session did not get its provider: the first known cause, or `why`."""
    reason = next((match[0] for cause in CAUSES if (match := cause.search(f"{printed}\n{why}"))), why)
    return " ".join(reason.rpartition("refuses the model: ")[2].split())[:200]


def _session(model: Path | bytes, threads: int, options: dict[str, Any], profile_to: Path | None = None) -> Any:
    provider = options.get("provider", CPU)
    os.environ.update(options.get("environment", {}))
    if provider != CPU and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # PyTorch's CUDA libraries
    provider_options = with_model_folders(options.get("provider_options", {}), model)
    if "threads_option" in options:  # a provider with threads of its own
        provider_options[options["threads_option"]] = str(threads)
    kwargs = {"threads": threads} | {name: options[name] for name in SESSION_OPTIONS if name in options}
    if "others" in kwargs:  # JSON has no pairs
        kwargs["others"] = [name if isinstance(name, str) else tuple(name) for name in kwargs["others"]]
    settings = RECORD_PLACEMENT | options.get("settings", {})
    return open_session(
        model, profile_to=profile_to, provider=provider, provider_options=provider_options, settings=settings, **kwargs
    )


def _accepted(options: dict[str, Any]) -> list[str]:
    """Return the providers that may multiply: the first one alone, unless hybrid placement was asked for."""
    accepted: list[str] = options.get("accepted", [options.get("provider", CPU)])
    return accepted


def with_model_folders(provider_options: dict[str, str], model: Path | bytes) -> dict[str, str]:
    """Return a provider's options, with `{model}` replaced by the model's digest in folders, which are created."""
    replaced = dict(provider_options)
    for name, value in replaced.items():
        if "{model}" in value:
            replaced[name] = value.replace("{model}", _digest(model)[:16])
            Path(replaced[name]).mkdir(parents=True, exist_ok=True)
    return replaced


@lru_cache
def _digest(model: Path | bytes) -> str:
    """Return the SHA-256 of a model and its files of weights, whose names begin with its own."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    digest = hashlib.sha256()
    for path in sorted(model.parent.glob(f"{glob.escape(model.name)}*")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class OrtEngine(Engine):
    """An ONNX Runtime session."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        self.runtime = f"onnxruntime {ort.__version__}"
        self.asked, self.accepted = options.get("provider", CPU), _accepted(options)
        self._open = partial(_session, model, threads, options)
        self.session = self._open()
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()
        got = self.session.get_providers()
        lost = [provider for provider in options.get("required", [self.asked]) if provider not in got]
        if lost and options.get("refuse_fallback", True):
            raise StageError(f"the session asked for {lost[0]} and got {', '.join(got)}")
        device = options.get("device") if self.asked in got else None
        self.on_processor = device is None
        kinds = [str(port.type) for port in (*self.inputs, *self.outputs)]  # texts and sequences are in no buffer
        self.device = device if all(k.startswith("tensor(") and "string" not in k for k in kinds) else None
        self.device_id = int(options.get("provider_options", {}).get("device_id", 0))

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Bind inputs and outputs to the device, if any, so that the time excludes copies between memories."""
        names = [port.name for port in self.get_outputs()]
        if self.device is None:
            return partial(self.session.run, names, feed), lambda values: [np.asarray(value) for value in values]
        binding = self.session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, self.device, self.device_id))
        for name in names:
            binding.bind_output(name, self.device, self.device_id)
        run = partial(self.session.run_with_iobinding, binding)  # returns when the device is done
        return run, lambda _: [np.array(value) for value in binding.copy_outputs_to_cpu()]

    def run(self, names: Sequence[str], feed: NamedArrays) -> list[Any]:
        """Return the named outputs of a call like the timed ones; without a device, outputs of any kind."""
        return super().run(names, feed) if self.device else self.session.run(list(names), feed)

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the nodes by provider, as the session assigned them or, before 1.31, from a profiled call.

        A profiled call also counts the kernels of a quantized model, except for providers that compile parts of the
        graph, because each part is one node of unknown operators.
        """
        nodes: dict[str, list[list[str]]] = {}
        known = hasattr(self.session, "get_provider_graph_assignment_info")
        for part in self.session.get_provider_graph_assignment_info() if known else ():
            nodes.setdefault(part.ep_name, []).extend([node.name, node.op_type] for node in part.get_nodes())
        quantized = any(operator in QUANTIZED_OPS for part in nodes.values() for _, operator in part)
        placement = {"asked": self.asked, "accepted": self.accepted, "nodes": nodes}
        if known and not (quantized and self.asked in ONE_BY_ONE):
            return placement
        with tempfile.TemporaryDirectory() as folder:
            events = json.loads(Path(self.profile(feed, 1, folder)).read_text())
        ran = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
        for event in ran if not known else ():
            node = [event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]]
            nodes.setdefault(event["args"]["provider"], []).append(node)
        kernels = Counter(kernel for event in ran if self.asked in ONE_BY_ONE and (kernel := _kernel(event["args"])))
        return placement | {"kernels": dict(kernels)}

    def profile(self, feed: NamedArrays, calls: int, folder: str) -> str:
        """Run a second session with the profiler; return its trace."""
        session = self._open(Path(folder) / "trace")
        names = [port.name for port in session.get_outputs()]
        for _ in range(calls):
            session.run(names, feed)
        return str(session.end_profiling())


load_engine = OrtEngine


def _kernel(event: dict[str, Any]) -> str | None:
    """Return the type that a profiled kernel multiplies in, or None."""
    if event["op_name"] in INTEGER_OPS:
        return "i8"
    kinds = [kind for value in event["input_type_shape"] for kind in value]
    return TYPES.get(kinds[0]) if event["op_name"] in FLOAT_OPS and kinds else None

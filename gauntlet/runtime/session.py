"""Open ONNX Runtime sessions, and find out which versions the installed runtime supports."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort

from gauntlet.core.errors import StageError
from gauntlet.runtime.operator_libraries import session_options
from gauntlet.runtime.processor import EXACT_KERNELS, Processor, session_settings
from gauntlet.runtime.resources import usable_threads

Level = Literal["off", "basic", "extended", "all"]
ERRORS, FATAL = 3, 4
"""Of ONNX Runtime's levels of messages. What a session cannot do, its exception says as well."""

LEVELS = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

NAMED_VALUES = {"graph_optimization_level": ort.GraphOptimizationLevel, "execution_mode": ort.ExecutionMode}
MEMORY_VALUES = ("enable_mem_pattern", "enable_mem_reuse")
PLAIN_VALUES = ("intra_op_num_threads", "inter_op_num_threads", "enable_cpu_mem_arena", *MEMORY_VALUES)
CONFIG_ENTRIES = (
    "session.intra_op.allow_spinning",
    "session.inter_op.allow_spinning",
    "session.dynamic_block_base",
    "session.disable_prepacking",
    "session.force_spinning_stop",
    "session.set_denormal_as_zero",
    EXACT_KERNELS,
)
"""The only settings that a bundle may have: others write files, or load code."""

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"

ort.set_default_logger_severity(ERRORS)


def open_session(
    model: Path | bytes,
    *,
    level: Level = "all",
    threads: int | None = None,
    inter_op_threads: int | None = None,
    arena: bool = True,
    memory_pattern: bool = True,
    save_to: Path | None = None,
    profile_to: Path | None = None,
    provider: str = "CPUExecutionProvider",
    provider_options: Mapping[str, str] | None = None,
    others: Sequence[str | tuple[str, Mapping[str, str]]] = (),
    settings: Mapping[str, str] | None = None,
    overrides: Mapping[str, str | int | bool] | None = None,
    processor: Processor | None = None,
) -> Any:
    """Return an `InferenceSession`, with the operators of `gauntlet.runtime.operator_libraries`.

    Another provider may pass nodes, or silently all of them, to `others` and to the CPU: ask the session what it uses.
    Branches of the graph run side by side on `inter_op_threads`, if there are any. `save_to` is a file for the
    optimized graph, `profile_to` the prefix of the file that `end_profiling` returns. `settings` are further
    entries of the session configuration; the model's metadata may require some for `processor`, by default this one.
    `overrides` win over all these: settings by the names of ONNX Runtime's SessionOptions, as a bundle holds them.

    Raises:
        StageError: when the runtime rejects the model or an operator library, the model rejects this processor, or
            an override is not allowed.
    """
    options = session_options()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = threads or usable_threads()
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = memory_pattern
    options.log_severity_level = FATAL
    if inter_op_threads:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = inter_op_threads
    if save_to is not None:
        from gauntlet.onnx_model.model_file import is_large_file  # a worker needs neither it nor onnx

        options.optimized_model_filepath = str(save_to)
        if isinstance(model, Path) and is_large_file(model):
            options.add_session_config_entry(EXTERNAL_FILE, f"{save_to.name}.data")
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
    for name, value in (settings or {}).items():
        options.add_session_config_entry(name, value)
    for name, setting in (overrides or {}).items():
        _override(options, name, setting)
    try:
        return _session(model, options, [(provider, dict(provider_options or {})), *others], processor)
    except StageError:
        raise
    except Exception as error:  # the runtime's own exceptions share no public base
        raise StageError(f"ONNX Runtime {ort.__version__} refuses the model: {error}") from error


def _override(options: Any, name: str, value: str | int | bool) -> None:
    if name not in (*NAMED_VALUES, *PLAIN_VALUES, *CONFIG_ENTRIES):
        allowed = ", ".join((*NAMED_VALUES, *PLAIN_VALUES, *CONFIG_ENTRIES))
        raise StageError(f"session option {name!r} is not allowed; allowed: {allowed}")
    try:
        if name in CONFIG_ENTRIES:
            options.add_session_config_entry(name, str(value))
        else:
            setattr(options, name, NAMED_VALUES[name].__members__[str(value)] if name in NAMED_VALUES else value)
    except (KeyError, TypeError, ValueError) as error:
        raise StageError(f"session option {name}: the value {value!r} is not allowed") from error


def _session(model: Path | bytes, options: Any, providers: list[Any], processor: Processor | None) -> Any:
    """Open the session; on the CPU, open it again with the settings that the model needs on this processor."""
    source = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    if providers[0][0] != "CPUExecutionProvider":
        return session
    needed = session_settings(session.get_modelmeta().custom_metadata_map, processor or Processor.current())
    for name, value in needed.items():
        options.add_session_config_entry(name, value)
    return ort.InferenceSession(source, options, providers=providers, enable_fallback=0) if needed else session


@lru_cache
def supported_opset() -> int:
    """Return the newest opset of the default domain that this runtime loads."""
    import onnx.defs

    return next(v for v in range(onnx.defs.onnx_opset_version(), 0, -1) if _loads(opset=v, ir_version=8))


@lru_cache
def supported_ir_version() -> int:
    """Return the newest IR version that this runtime loads."""
    import onnx

    return next(v for v in range(onnx.IR_VERSION, 0, -1) if _loads(opset=13, ir_version=v))


def _loads(opset: int, ir_version: int) -> bool:
    import onnx.parser

    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
    probe = onnx.parser.parse_model(f"{header} probe (float[1] x) => (float[1] y) {{ y = Relu(x) }}")
    try:
        open_session(probe.SerializeToString(), threads=1)
    except StageError:
        return False
    return True

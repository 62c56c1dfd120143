"""Run a bundle's model as it was raced: on the target that it won on, in this process."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from gauntlet.bundle.contract import Contract
from gauntlet.core.errors import ConfigError, PipelineError, StageError, one_line
from gauntlet.runtime.engines.base import Engine
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.session import CONFIG_ENTRIES, LEVELS, Level, open_session
from gauntlet.targets import default_targets, with_options
from gauntlet.targets.base import BaseTarget
from gauntlet.targets.environments import folder, missing
from gauntlet.targets.ort import NO_SPINNING, OrtCpu, OrtTarget


def open_raced(
    contract: Contract,
    model: Path,
    *,
    provider: str | None = None,
    threads: int | None = None,
    overrides: Mapping[str, str | int | bool] | None = None,
) -> tuple[Any, str]:
    """Return what runs the model: the engine of the contract's target, or a session of ONNX Runtime on the processor.

    Where the target cannot run here, it is the session, with a line that says why; otherwise the line is empty.
    With `provider`, it is that execution provider of ONNX Runtime instead, or nothing. `threads` are by default all
    that this process may use; `overrides` are named as ONNX Runtime's SessionOptions are.

    Raises:
        ConfigError: when the provider is unknown, or cannot run here.
        StageError: when ONNX Runtime rejects the model, or the model rejects this processor.
    """
    line = ""
    other = execution_provider(provider) if provider else None
    if other and other.name != contract.target:
        line = f"{contract.name} won on {contract.target}; on {other.name}, its speed was not proven"
    if other and not isinstance(other, OrtCpu):
        return _engine(other, model, threads or usable_threads()), line
    if not other and contract.session is None and contract.target != OrtCpu().name:
        try:
            here = usable_threads()
            return _engine(raced_target(contract), model, threads or min(contract.threads or here, here)), ""
        except (PipelineError, ImportError) as error:
            line = f"{contract.name} won on {contract.target}, which cannot run here: {one_line(error)}. "
            line += "It runs in ONNX Runtime on the processor, where its speed was not proven"
    return open_session(model, threads=threads, overrides=overrides), line


def raced_target(contract: Contract) -> BaseTarget:
    """Return the target that won, with its options; more threads than there are here become all.

    Raises:
        ConfigError: when its kind or an option is unknown here, or could load code or name files of this machine.
    """
    if contract.session is not None or contract.target == OrtCpu().name:
        return target_of_session(contract.session or {})
    target = with_options(contract.options)
    if refused := next(target.bound_to_machine(), None):
        raise ConfigError(f"its contract sets {refused}, which a bundle may not")
    return target


def target_of_session(session: Mapping[str, str | int | bool]) -> OrtCpu:
    """Return the target whose `session_options` a contract has; more threads than there are here become all."""
    levels = {LEVELS[level].name: level for level in get_args(Level)}
    threads, branches = session.get("intra_op_num_threads"), session.get("inter_op_num_threads")
    parallel = session.get("execution_mode") == "ORT_PARALLEL" and usable_threads() > 1
    return OrtCpu(
        level=levels.get(session.get("graph_optimization_level"), "all"),
        threads=min(int(threads), usable_threads()) if threads else None,
        arena=bool(session.get("enable_cpu_mem_arena", True)),
        memory_pattern=bool(session.get("enable_mem_pattern", True)),
        inter_op_threads=min(int(branches), usable_threads()) if branches and parallel else None,
        spinning=session.get("session.intra_op.allow_spinning", "1") != "0",
        config_entries={key: str(session[key]) for key in CONFIG_ENTRIES if key in session and key not in NO_SPINNING},
    )


def execution_provider(name: str) -> BaseTarget:
    """Return the target of an execution provider: `cuda`, `CUDAExecutionProvider`, `tensorrt-f16`, ...

    Raises:
        ConfigError: when there is none of this name, or it cannot run here.
    """
    known = {target.name.removeprefix("ort-"): target for target in default_targets() if isinstance(target, OrtTarget)}
    known = {short: target for short, target in known.items() if target.environment is None}
    short = name.lower().removesuffix("executionprovider")
    target = known.get(short) or next((t for t in known.values() if t.kind == f"ort-{short}"), None)
    if target is None:
        raise ConfigError(f"--provider {name}: unknown; known: {', '.join(known)}")
    if why := _unavailable(target):
        here = ", ".join(short for short, other in known.items() if not _unavailable(other))
        raise ConfigError(f"--provider {name}: it cannot run here: {why}. Fix: choose one that can: {here}")
    return target


def _unavailable(target: BaseTarget) -> str | None:
    why: str | None = importlib.import_module(target.engine).unavailable_reason(target.engine_options())
    return why


def _engine(target: BaseTarget, model: Path, threads: int) -> Engine:
    if target.model_suffixes:
        raise StageError("it runs no ONNX files")
    if target.environment and (why := missing(target.environment)):
        raise StageError(why)
    with _packages_of(target.environment):
        module = importlib.import_module(target.engine)
        options = target.engine_options()
        if why := module.unavailable_reason(options):
            raise StageError(why)
        engine: Engine = module.load_engine(model, threads, options)
    return engine


@contextmanager
def _packages_of(environment: str | None) -> Iterator[None]:
    """Let packages of another environment be imported, after those of this one, which has the same Python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = str(folder(environment) / "lib" / version / "site-packages") if environment else ""
    if path:
        sys.path.append(path)
    try:
        yield
    finally:
        if path:
            sys.path.remove(path)

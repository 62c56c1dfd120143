"""Run a bundle's model as it was raced: on the target that it won on, in this process."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gauntlet.bundle.contract import Contract
from gauntlet.core.errors import PipelineError, StageError, one_line
from gauntlet.runtime.engines.base import Engine
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.session import open_session
from gauntlet.targets import by_name
from gauntlet.targets.environments import folder, missing
from gauntlet.targets.ort import OrtCpu


def open_raced(
    contract: Contract,
    model: Path,
    *,
    threads: int | None = None,
    overrides: Mapping[str, str | int | bool] | None = None,
) -> tuple[Any, str]:
    """Return what runs the model: the engine of the contract's target, or a session of ONNX Runtime on the processor.

    Where the target cannot run here, it is the session, with a line that says why; otherwise the line is empty.

    Args:
        contract: names the target.
        model: the ONNX file.
        threads: by default all that this process may use.
        overrides: settings of the session, by the names of ONNX Runtime's SessionOptions.

    Raises:
        StageError: when ONNX Runtime rejects the model, or the model rejects this processor.
    """
    line = ""
    if contract.session is None and contract.target != OrtCpu().name:
        try:
            return _engine(contract.target, model, threads or usable_threads()), ""
        except (PipelineError, ImportError) as error:
            line = f"{contract.name} won on {contract.target}, which cannot run here: {one_line(error)}. "
            line += "It runs in ONNX Runtime on the processor, where its speed was not proven"
    return open_session(model, threads=threads, overrides=overrides), line


def _engine(name: str, model: Path, threads: int) -> Engine:
    target = by_name(name)
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

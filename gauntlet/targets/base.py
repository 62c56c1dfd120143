"""What all execution targets have in common."""

import importlib.util
import json
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.runtime import worker
from gauntlet.targets import environments

Precision = Literal["f32", "tf32", "f16", "bf16", "int8"]
PROBE_TIMEOUT_S = 60.0


class BaseTarget(Frozen):
    """A runtime with its options, on a device, in a Python environment."""

    kind: str
    env: str | None = Field(
        None, description="Python environment: a name that `gauntlet targets install` knows, or a folder"
    )
    memory_gb: float | None = Field(
        None, gt=0, description="limit of each worker; by default, half of what this process may use"
    )

    engine: ClassVar[str]
    model_suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the framework's files that it runs; empty where it runs ONNX."""
    packages: ClassVar[dict[str, str]] = {}
    """What it needs beside the core, and the extra that brings each."""

    @property
    def name(self) -> str:
        """The target in reports; two that differ in what they compute, or how, differ in it."""
        usual = self.env == type(self).model_fields["env"].default
        return "-".join((self.kind, *self.name_suffix(), *(() if usual else (Path(str(self.env)).name,))))

    @property
    def declared_precision(self) -> Precision:
        """The precision that numbers of this target are labelled with; it is checked against the answers."""
        return "f32"

    def name_suffix(self) -> tuple[str, ...]:
        """Return the parts of the name that the options make."""
        return ()

    def engine_options(self) -> JsonObject:
        """Return what the engine is told."""
        return {}

    def options(self) -> JsonObject:
        """Return the worker's `options`."""
        limit: JsonObject = {"memory_bytes": round(self.memory_gb * 1e9)} if self.memory_gb else {}
        return {"engine": self.engine, **self.engine_options(), **limit}

    def command(self) -> tuple[str, ...]:
        """Return the worker's command line: in another environment, the worker as a file that is on its own."""
        if self.env is None:
            return worker.WORKER_COMMAND
        return (str(environments.python(self.env)), "-I", str(Path(worker.__file__).resolve()))

    def unavailable(self) -> str | None:
        """Return why this target cannot run here, in one line, or None. It is tried, in a process of its own."""
        why = environments.missing(self.env) if self.env else self._lacking()
        return why or _probe(self.command(), json.dumps({"do": "check_available", "options": self.options()}))

    def _lacking(self) -> str | None:
        absent = [package for package in self.packages if importlib.util.find_spec(package) is None]
        return f"{absent[0]} is not installed; install it with: make {self.packages[absent[0]]}" if absent else None

    def rejection_reason(self, source: Path | None) -> str | None:
        """Return why a file is none that it takes for the source framework's own, in one line, or None."""
        if not self.model_suffixes or (source is not None and source.suffix in self.model_suffixes):
            return None
        given = f"{source.name} is none" if source else "none was given (gauntlet bench --framework-model)"
        return f"it runs its framework's own file ({', '.join(self.model_suffixes)}); {given}"


@lru_cache
def _probe(command: tuple[str, ...], request: str) -> str | None:
    try:
        done = subprocess.run(
            command, input=request + "\n", capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"its worker gave no answer within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return f"its worker cannot be started: {error}"
    except ValueError:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        return f"its worker ended with code {done.returncode}" + (f": {last[:200]}" if last else "")
    reason = answer.get("error", answer.get("unavailable"))
    return None if reason is None else " ".join(str(reason).split())

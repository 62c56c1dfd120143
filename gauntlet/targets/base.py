"""Base class of all execution targets."""

import contextlib
import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, Self, cast

from pydantic import Field, PrivateAttr, model_validator

from gauntlet.core.errors import ConfigError, install_command, one_line
from gauntlet.core.frozen import Frozen, JsonObject, Kind
from gauntlet.runtime import worker
from gauntlet.targets import environments

Precision = Literal["f32", "tf32", "f16", "bf16", "int8"]
PROBE_TIMEOUT_S = 60.0
WORKER_GB = "GAUNTLET_WORKER_GB"
POOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
"""Names of work pools; they become part of the names of targets, deployments and metrics."""


class OperatorList(Frozen):
    """The operators of ONNX's default domain that a runtime documents; some take only certain types or attributes."""

    source: str
    operators: frozenset[str]


def memory_limit() -> dict[str, int]:
    """Return the limit in `GAUNTLET_WORKER_GB` on the memory of each worker; by default, a worker sets its own."""
    text = os.environ.get(WORKER_GB, "")
    try:
        return {"memory_bytes": round(float(text) * 1e9)} if text else {}
    except ValueError:
        raise ConfigError(f"{WORKER_GB}={text}: expected a number of gigabytes, for example 8") from None


class BaseTarget(Kind):
    """A runtime with its options, on a device, in a Python environment."""

    on: str | None = Field(
        None, pattern=POOL_NAME, description="Prefect work pool on whose machines the target races (`gauntlet worker`)"
    )

    engine: ClassVar[str]
    may_fork: ClassVar[bool] = False
    """Whether a process that has imported the engine, and loaded no model, may be copied (fork)."""
    model_suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the framework's files that it runs; empty for ONNX."""
    known_options: ClassVar[tuple[JsonObject, ...]] = ({},)
    """The options of each target of this kind that the command line knows by name."""
    automatic: ClassVar[tuple[JsonObject, ...]] = ()
    """The options of those that `deploy_targets: auto` adds where they are installed."""
    int8_options: ClassVar[JsonObject] = {}
    """Options of the static INT8 recipe that it needs and ONNX Runtime's own kernels do not."""
    named: ClassVar[tuple[str, ...]] = ()
    """Options that are part of the name."""
    named_if_changed: ClassVar[dict[str, str]] = {}
    """Options that are part of the name unless they have their default, and how: a word, or {} for the value."""

    named_entries: ClassVar[str] = ""
    """The option whose entries are part of the name, such as `properties`."""
    set_elsewhere: ClassVar[dict[str, str]] = {}
    """Keys that are refused among these entries -> the option that sets them: the name would have another value."""

    bundled_entries: ClassVar[frozenset[str]] = frozenset()
    """Keys of options with entries of any name that a bundle may have: they load no code, and name no file."""
    documented_operators: ClassVar[OperatorList | None] = None
    """For a device that is elsewhere: there is no one to ask here."""
    fallback: ClassVar[str | None] = None
    """Where the nodes run that it does not take; None where it refuses a model with any."""

    @model_validator(mode="after")
    def _entries_are_not_set_elsewhere(self) -> Self:
        if twice := sorted(self.set_elsewhere.keys() & getattr(self, self.named_entries, {}).keys()):
            raise ValueError(f"{self.named_entries}.{twice[0]}: {self.set_elsewhere[twice[0]]} sets it; remove it here")
        return self

    @property
    def name(self) -> str:
        """The target in reports; targets that compute differently have different names."""
        env = (Path(self.environment).name,) if self.environment and not self._is_default("env") else ()
        elsewhere = ("on", self.on) if self.on else ()
        return "-".join((self.kind, *self.name_suffix(), *env, *elsewhere))

    @property
    def environment(self) -> str | None:
        """The worker's Python environment, if another; there, only engines of this project can be imported."""
        return cast("str | None", getattr(self, "env", None))

    @property
    def declared_precision(self) -> Precision:
        """The precision that the target states; it is checked against the outputs."""
        return cast(Precision, getattr(self, "precision", "f32"))

    def name_suffix(self) -> tuple[str, ...]:
        """Return the options in the name, and the entries in it."""
        changed = {option: word for option, word in self.named_if_changed.items() if not self._is_default(option)}
        words = dict.fromkeys(self.named, "{}") | changed
        entries = sorted(getattr(self, self.named_entries, {}).items())
        options = (word.format(getattr(self, option)).lower() for option, word in words.items())
        return (*options, *(f"{key}={value}" for key, value in entries))

    def _is_default(self, option: str) -> bool:
        return bool(getattr(self, option) == type(self).model_fields[option].default)

    def bound_to_machine(self) -> Iterator[str]:
        """Yield the options that a bundle may not have, because they could load code or name files of a machine."""
        if self.environment and self.environment not in environments.known():
            yield "env"
        for option, entries in self:
            for key, entry in entries.items() if isinstance(entries, dict) else ():
                if key not in self.bundled_entries and not isinstance(entry, Frozen):
                    yield f"{option}.{key}"

    def engine_options(self) -> JsonObject:
        """Return the options of the engine."""
        return {}

    def options(self) -> JsonObject:
        """Return the worker's `options`."""
        return {"engine": self.engine, **self.engine_options(), **memory_limit()}

    def command(self) -> tuple[str, ...]:
        """Return the worker's command line; in another environment, the worker runs as a single file."""
        if self.environment is None:
            return worker.WORKER_COMMAND
        return (str(environments.python(self.environment)), "-I", str(Path(worker.__file__).resolve()))

    def unavailable(self) -> str | None:
        """Try the target in a child process; return why it cannot run here, in one line, or None."""
        return self.missing() or _probe(self.command(), (self._request(),))[0]

    def missing(self) -> str | None:
        """Return what is not installed, in one line, or None; it starts nothing."""
        return environments.missing(self.environment) if self.environment else self._missing_package()

    def _request(self) -> str:
        return json.dumps({"do": "check_available", "options": self.options()})

    def _missing_package(self) -> str | None:
        missing = next((package for package in self.packages if importlib.util.find_spec(package) is None), None)
        if missing is None:
            return None
        return f"{missing} is not installed; install it with: {install_command(self.packages[missing])}"

    def rejection_reason(self, framework_model: Path | None) -> str | None:
        """Return why the target cannot run the framework's file, in one line, or None; None for targets of ONNX."""
        if not self.model_suffixes or (framework_model and framework_model.suffix in self.model_suffixes):
            return None
        received = framework_model.name if framework_model else "none (give one with: gauntlet bench --framework-model)"
        return f"the target runs its framework's own file ({', '.join(self.model_suffixes)}), got {received}"


class FrameworkTarget(BaseTarget):
    """A framework that runs its own file, which may bring code."""

    _trust: bool = PrivateAttr(False)

    def with_trust(self) -> Self:
        """Return the target that runs the code that its file brings, as a run's own file may."""
        trusting = self.model_copy()
        trusting._trust = True
        return trusting

    def engine_options(self) -> JsonObject:
        """Return whether the file's code may run."""
        return {"trust": self._trust}


def unavailable_together(targets: Sequence[BaseTarget]) -> list[str | None]:
    """Return what `unavailable` does for targets of one engine; one child process tries them, and imports it once."""
    tried = [target for target in targets if target.missing() is None]
    requests = tuple(target._request() for target in tried)
    reasons = dict(zip(requests, _probe(tried[0].command(), requests), strict=True)) if tried else {}
    return [target.missing() or reasons[target._request()] for target in targets]


@lru_cache
def _probe(command: tuple[str, ...], requests: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return a worker's replies; where it does not live to give all of them, each request has a worker of its own."""
    try:
        text = "".join(f"{request}\n" for request in requests)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
        with contextlib.suppress(ValueError):
            replies = [json.loads(line) for line in done.stdout.splitlines()]
            if len(replies) == len(requests):
                reasons = [reply.get("error", reply.get("unavailable")) for reply in replies]
                return tuple(None if reason is None else one_line(reason) for reason in reasons)
        last = "".join(done.stderr.strip().splitlines()[-1:])
        failure = f"its worker ended with code {done.returncode}" + (f": {last[:200]}" if last else "")
    except subprocess.TimeoutExpired:
        failure = f"its worker did not reply within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        failure = f"its worker cannot be started: {error}"
    return (failure,) if len(requests) == 1 else tuple(_probe(command, (request,))[0] for request in requests)

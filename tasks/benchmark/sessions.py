"""Session options that race with the candidates: the same file with fewer threads, threads that sleep, no arena."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from tasks.artifact import Artifact
from tasks.benchmark.contender import Contender, Entry
from tasks.benchmark.rows import rows
from tasks.errors import ConfigError
from tasks.frozen import Frozen
from tasks.targets.base import BaseTarget
from tasks.targets.ort_cpu import OrtCpu
from tasks.workspace import Workspace


class Session(Frozen):
    """One way to open a session; rows of it bear its name as their target."""

    name: str
    options: dict[str, str | int | bool] = Field(description="as ONNX Runtime's SessionOptions names them")


def described(targets: Sequence[OrtCpu], threads: int, usable: int) -> tuple[Session, ...]:
    """Return the sessions, the one that the others are compared with first.

    Args:
        targets: processors with the options of a session.
        threads: of a session without a number of its own.
        usable: threads that this process may use.

    Raises:
        ConfigError: when one asks for more threads than there are, or is another one under a second name.
    """
    found: list[Session] = []
    for target in targets:
        if target.threads and target.threads > usable:
            told = f"{target.name} asks for {target.threads} threads, and this process may use {usable}"
            raise ConfigError(f"sessions: {told}; ask for fewer, or leave it out")
        options = target.session_options(threads)
        same = next((one.name for one in found if one.options == options), None)
        if same is not None:
            raise ConfigError(f"sessions: {target.name} is the same as {same} here; leave it out")
        found.append(Session(name=target.name, options=options))
    return tuple(found)


def entries(models: Mapping[str, Artifact], targets: Sequence[OrtCpu], out: Workspace) -> dict[str, Entry]:
    """Return every model in every session; those in the first one bear the model's name alone."""
    return {
        contender(name, target, targets): Entry(
            out.path(model),
            target.command(),
            target.options(),
            target.name,
            usual=None if target == targets[0] else name,
        )
        for target in targets
        for name, model in models.items()
    }


def contender(candidate: str, target: BaseTarget, targets: Sequence[OrtCpu]) -> str:
    """Return the name of a candidate in a session, or on a further target; no candidate's name has a space."""
    return candidate if target == targets[0] else f"{candidate} on {target.name}"


def preferred(tried: Sequence[Contender], batch: int, resolution: float) -> Contender:
    """Return the session or target of one candidate that it is to be run on.

    It is the first one that is still in the race, unless others are proven faster than that: then the fastest of these.
    """
    running = [one for one in tried if one.runs(batch)]
    if not running:
        return next((one for one in tried if one.error is None), tried[0])
    first, *others = running
    proven = {}
    for one in others:
        row = next(row for row in rows(one, first, resolution=resolution) if row.batch == batch)
        if row.verdict == "faster":
            proven[row.speedup] = one
    return proven[max(proven)] if proven else first

"""Session variants that race with the candidates: the same file with fewer threads, no spinning, or no arena."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.core.workspace import Workspace
from gauntlet.race.contender import Contender, Entry
from gauntlet.race.objective import Objective
from gauntlet.race.rows import row
from gauntlet.runtime.session import CONFIG_ENTRIES
from gauntlet.targets.base import BaseTarget
from gauntlet.targets.ort import OrtCpu


class SessionVariant(Frozen):
    """One set of session options; its rows have its name as their target."""

    name: str
    options: dict[str, str | int | bool] = Field(description="named as in ONNX Runtime's SessionOptions")


def describe_sessions(targets: Sequence[OrtCpu], threads: int, usable: int) -> tuple[SessionVariant, ...]:
    """Return the session variants; the first is the baseline of the others, `threads` the default number.

    Raises:
        ConfigError: when a target asks for more than `usable` threads, has the same options as another one, or an
            entry of the configuration that no bundle may have.
    """
    variants: list[SessionVariant] = []
    for target in targets:
        if target.threads and target.threads > usable:
            problem = f"{target.name} asks for {target.threads} threads, and this process may use {usable}"
            raise ConfigError(f"sessions: {problem}; lower its threads, or remove it")
        refused = [key for key in target.config_entries if key not in CONFIG_ENTRIES]
        if refused:
            raise ConfigError(
                f"sessions: {target.name} sets {refused[0]}, which a bundle may not have (allowed: "
                f"{', '.join(CONFIG_ENTRIES)}); race it as a later one of benchmark.targets"
            )
        options = target.session_options(threads)
        same = next((variant.name for variant in variants if variant.options == options), None)
        if same is not None:
            raise ConfigError(f"sessions: {target.name} is the same as {same} here; remove it")
        variants.append(SessionVariant(name=target.name, options=options))
    return tuple(variants)


def session_entries(
    models: Mapping[str, Artifact], targets: Sequence[OrtCpu], workspace: Workspace
) -> dict[str, Entry]:
    """Return every model in every session variant; entries of the first one have the model's name alone."""
    return {
        contender_name(name, target, targets): Entry.on_target(
            workspace.path(model), target, baseline=None if target == targets[0] else name
        )
        for target in targets
        for name, model in models.items()
    }


def contender_name(candidate: str, target: BaseTarget, targets: Sequence[OrtCpu]) -> str:
    """Return the name of a candidate with a session variant or on another target; candidate names have no spaces."""
    return candidate if target == targets[0] else f"{candidate} on {target.name}"


def best_session(
    tried: Sequence[Contender],
    batch: int,
    resolution: float,
    objective: Objective = "latency",
    rows: Mapping[str, BenchmarkRow] = MappingProxyType({}),
) -> Contender:
    """Return the contender with the best session variant or target of one candidate.

    This is the first one still in the race, unless others are proven faster: then the fastest of these. With the
    objective memory, it is the one that needs least of those proven to need less, and not proven slower. In a disturbed
    race, the `rows` against the reference at this batch size, by contender, must also say so.
    """
    running = [entry for entry in tried if entry.runs(batch)]
    if not running:
        return next((entry for entry in tried if entry.error is None), tried[0])
    first, *others = running
    pairs = [(row(entry, first, batch, resolution=resolution), entry) for entry in others]
    if objective == "memory":
        least = 1 + resolution
        less = [(r, e) for r, e in pairs if r.memory_ratio_low and r.memory_ratio_low > least and r.verdict != "slower"]
        proven = {against.memory_ratio or 0.0: entry for against, entry in less}
    else:
        faster = [(against.speedup, entry) for against, entry in pairs if against.verdict == "faster"]
        own = rows.get(first.name)
        proven = {gain: e for gain, e in faster if own is None or not rows[e.name].may_equal(own)}
    return proven[max(proven)] if proven else first

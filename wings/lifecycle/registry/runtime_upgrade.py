"""Try the champion in another release of ONNX Runtime: the same file and requests, each runtime in its environment.

The limits are those of a promotion, with the champion in its runtime as the champion. Nothing is changed: the ledger
has the verdict and its evidence.
"""

import math
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from pydantic import Field

from flows.record.home import Home
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.loading import differences
from gauntlet.core.errors import ConfigError, GateFailed, StageError, one_line
from gauntlet.core.report import Check
from gauntlet.reporting.text_format import size
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets.environments import RuntimeEnvironment, make, python
from wings.lifecycle.library.promotion.gates import with_reason
from wings.lifecycle.library.promotion.ledger import Entry, checked_name
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits, replay_checks
from wings.lifecycle.library.promotion.replayed_requests import golden_requests
from wings.lifecycle.library.promotion.shadow_replay import ReplayedModel
from wings.lifecycle.registry.bundle_cache import registry_of
from wings.lifecycle.registry.promote import PromotionRequest, origin_of, replayed
from wings.lifecycle.registry.transaction import transaction

REQUIREMENT = re.compile(r"onnxruntime(-[a-z]+)*==\d[\w.!+-]*")
MAX_MEMORY_GROWTH = 0.1
"""Share of the process's peak memory that may be added."""
VERSION = "import onnxruntime; print(onnxruntime.__version__)"
PROBE_TIMEOUT_S = 60


class UpgradeLimits(ReplayLimits):
    """What the champion may lose in the other runtime: the file is the same, so it should lose nothing."""

    max_slowdown: float = Field(0.02, ge=0, description="latency added, as a share of that in the present runtime")
    rounds: int = Field(48, ge=6, description="rounds of the race, each with new processes")


def upgrade(
    home: Home,
    name: str,
    runtime: str,
    limits: ReplayLimits,
    *,
    requests: Path | None = None,
    why: str = "",
    say: Callable[[str], None] = lambda _: None,
    on_round: Callable[[int], None] = lambda _: None,
) -> Entry:
    """Compare a model's champion in the runtime of this process with itself in another; return the ledger's line.

    Args:
        home: of the model.
        name: of the registered model.
        runtime: a requirement (`onnxruntime==1.32.0`), which is installed into the home, or an environment's folder.
        limits: of the replay.
        requests: to replay; by default as for a promotion.
        why: a reason to accept more memory, or golden outputs that are not the same.
        say: called with progress messages of one line.
        on_round: called with the number of rounds done.

    Raises:
        ConfigError: when the runtime or its folder cannot be used, or there is no champion.
        GateFailed: when the champion should not move to the runtime; the ledger says so, too.
        StageError: when the runtime cannot be installed, or the registry cannot be reached.
    """
    request = PromotionRequest(f"models:/{checked_name(name)}@champion", requests=requests, limits=limits)
    with transaction(home, registry_of(home, name)):
        origin = origin_of(home, request)
    environment = _environment(home, runtime, say)
    versions = f"onnxruntime {onnxruntime.__version__} to {_version(runtime, environment)}"
    bundle, replay = origin.opened, None
    say(f"{versions}: golden samples")
    checks = golden_checks(bundle, environment, limits, why)
    if not any(check.blocks for check in checks):
        replay = replayed(home, request, origin, bundle, on_round, environment=environment)
        checks = (*checks, *replay_checks(replay, limits), memory_check(replay, why))
    with transaction(home, registry_of(home, name)) as held:
        if held.state.get("champion") != bundle.digest:
            raise ConfigError(f"{name}: another version became the champion meanwhile. Fix: upgrade again")
        fields = {"digest": bundle.digest, "run_id": origin.run_id, "candidate": bundle.contract.candidate}
        fields |= {"role": "champion", "runtime": versions, "why": why}
        entry = held.note("upgrade", checks=checks, replay=replay, **fields)
    if failed := [str(check) for check in checks if check.blocks]:
        place = f"line {entry.number} of {held.ledger.path}"
        raise GateFailed("\n".join((f"{name}: keep it from {versions} ({place})", *failed)))
    return entry


def _environment(home: Home, runtime: str, say: Callable[[str], None]) -> str:
    """Return the folder of an environment with a runtime: the user's own, or one in the home that has a requirement."""
    if python(runtime).is_file():
        return str(Path(runtime).resolve())
    if not REQUIREMENT.fullmatch(runtime):
        allowed = "onnxruntime==VERSION (or onnxruntime-gpu==VERSION ...), or the folder of a Python environment"
        raise ConfigError(
            f"{runtime}: not a runtime; expected {allowed}. Fix: gauntlet upgrade NAME onnxruntime==1.32.0"
        )
    place = home.root / "environments" / runtime.replace("==", "-")
    return str(make(place, RuntimeEnvironment(python=(f"numpy=={np.__version__}", runtime)), say))


def _version(runtime: str, environment: str) -> str:
    """Return the version of the environment's ONNX Runtime; `ConfigError` where it has none."""
    command = (str(python(environment)), "-I", "-c", VERSION)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{runtime}: its Python cannot be used ({one_line(error)})") from error
    if done.returncode or not done.stdout.strip():
        why = "".join(done.stderr.strip().splitlines()[-1:])
        raise ConfigError(f"{runtime}: no ONNX Runtime in it ({why}). Fix: install onnxruntime and numpy there")
    return done.stdout.split()[-1]


def golden_checks(bundle: Bundle, environment: str, limits: ReplayLimits, why: str = "") -> tuple[Check, ...]:
    """Return whether an environment's runtime runs the model, and has its golden outputs."""
    expected = bundle.golden().outputs
    with tempfile.TemporaryDirectory(prefix="gauntlet-upgrade-") as folder:
        try:
            model = ReplayedModel.prepare(bundle, golden_requests(bundle), Path(folder), environment)
            deviations = differences(model.outputs(Path(folder), usable_threads(), limits.timeout_s), expected)
        except StageError as error:
            return (Check.of("upgrade.runs", 0, "==", 1, str(error), "keep the present runtime"),)
    worst = max(deviations, key=lambda each: each.max_rel_error, default=None)
    detail = f"output {worst.output!r}, on {len(next(iter(expected.values())))} golden samples" if worst else ""
    value, limit = worst.max_rel_error if worst else math.inf, bundle.contract.golden_tolerance
    fix = "keep the present runtime, or say with --why why other outputs are right"
    return (with_reason(Check.of("upgrade.max_golden_error", value, "<=", limit, detail, fix), why),)


def memory_check(replay: ReplayFacts, why: str = "") -> Check:
    """Return whether the process needs hardly more memory in the other runtime."""
    before, after = replay.champion_peak_bytes, replay.challenger_peak_bytes
    detail = f"{size(after)} against {size(before)}, the median process of {replay.rounds}"
    fix = "keep the present runtime, or say with --why why it may need more"
    growth = after / before - 1 if before else math.nan
    return with_reason(Check.of("upgrade.max_memory_growth", growth, "<=", MAX_MEMORY_GROWTH, detail, fix), why)

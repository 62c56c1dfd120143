"""Look at a request log: continue a monitor's history, judge it, and write what was found."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gauntlet.bundle.bundle import REPORT, Bundle
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import RunReport
from gauntlet.request_log.log_format import REFERENCE, VERSION_DIGITS
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.features import feature_names
from wings.lifecycle.library.monitoring.judged_samples import judged_labels
from wings.lifecycle.library.monitoring.judgment import gather, judge
from wings.lifecycle.library.monitoring.monitor_history import MAX_SAMPLES, MonitorHistory
from wings.lifecycle.library.monitoring.monitor_page import render_monitor
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, MonitorResult
from wings.lifecycle.library.monitoring.predecessor import Predecessor, finite_outputs
from wings.lifecycle.library.monitoring.reference import MonitoringReference

HISTORY, RESULT, PAGE = "history.npz", "monitor.json", "monitor.html"


def monitor(
    bundle: Bundle,
    log: Path,
    limits: MonitorLimits,
    *,
    out: Path | None = None,
    restart: bool = False,
    previous: Predecessor | None = None,
) -> tuple[MonitorResult, Path]:
    """Judge what a bundle's model has been asked and has predicted; return the result and the folder with its files.

    The folder, by default one in the log's, keeps the history, so the probability of a false alarm is that of all
    looks together. Where it has another version's, the history begins anew, and with `restart`, with what is logged
    from now on. With `previous`, the result also says whether the bundle is proven worse than the champion before it,
    and that has half of the false alarms.

    Raises:
        ConfigError: when there is no log, or the bundle has no reference.
        StageError: when a file is damaged.
    """
    reader, signature, now = RequestLogReader(log), bundle.contract.signature, time.time()
    reader.require()
    reference = MonitoringReference.load(bundle)
    if reference.names != feature_names(signature):
        made = ", ".join(reference.names)
        raise ConfigError(
            f"{bundle.contract.name}: another version of onnx-gauntlet made its {REFERENCE}, with {made}. "
            "Fix: make the bundle again with this one"
        )
    if limits.p99_ms is None:
        limits = limits.replace(p99_ms=_objective_ms(bundle))
    version = bundle.digest[:VERSION_DIGITS]
    folder = out or log / "monitors" / f"{bundle.contract.name}-{version}"
    with _alone(folder):
        count = len(reference.watched)
        old = None if restart else MonitorHistory.load(folder / HISTORY, version)
        start = MonitorHistory.at_end(count, reader) if restart else MonitorHistory.empty(count)
        history = (old or start).updated(reader, version, signature, finite_outputs(bundle), reference.embedding)
        history.save(folder / HISTORY, version)
        history = judged_labels(history, limits.label_window_h, now)
        shared = limits.replace(false_alarms=limits.false_alarms / 2) if previous else limits
        evidence = gather(history, reference, shared)
        compared = previous.compare(signature, history, reader, shared, folder) if previous else None
        result = judge(bundle.contract.name, version, reference, shared, evidence, compared)
        result = result.replace(limits=limits, is_full=len(history.times) >= MAX_SAMPLES)
        write_atomically(folder / RESULT, result.model_dump_json(indent=1) + "\n")
        write_atomically(folder / PAGE, render_monitor(result, evidence, reader, signature))
    return result, folder


def _objective_ms(bundle: Bundle) -> float | None:
    """Return the 99th percentile that the run's `serve.objective` asks for; None without one."""
    try:
        serve = RunReport.model_validate_json((bundle.folder / REPORT).read_bytes()).config.get("serve")
    except (OSError, ValueError):
        return None
    objective = serve.get("objective") if isinstance(serve, dict) else None
    value = objective.get("p99_ms") if isinstance(objective, dict) else None
    return float(value) if isinstance(value, int | float) else None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, so that two looks at once do not lose what one of them read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a")
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}. Fix: name another folder with --out") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

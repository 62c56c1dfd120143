"""Look at a request log: continue a monitor's history, judge it, and write what was found, as a page, too."""

import base64
import fcntl
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image

from gauntlet.bundle.bundle import REPORT, Bundle
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.images.preprocessing import restored_pixels
from gauntlet.reporting.drawing import INK, LINE, MUTED, SERIES, embed, themed
from gauntlet.reporting.html_report import render_template
from gauntlet.request_log.input_statistics import IMAGE
from gauntlet.request_log.log_format import REFERENCE, VERSION_DIGITS
from wings.lifecycle.library import TEMPLATES
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.features import feature_names
from wings.lifecycle.library.monitoring.judged_samples import judged_labels
from wings.lifecycle.library.monitoring.judgment import Evidence, gather, judge
from wings.lifecycle.library.monitoring.martingale import Floats
from wings.lifecycle.library.monitoring.monitor_history import MAX_SAMPLES, MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, MonitorResult, MovedSample
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
    looks together. With `restart`, the history begins anew with what is logged from now on. With `previous`, the result
    also says whether the bundle is proven worse than the champion before it, and that has half of the false alarms.

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
        old = None if restart else MonitorHistory.load(folder / HISTORY)
        start = MonitorHistory.at_end(count, reader) if restart else MonitorHistory.empty(count)
        history = (old or start).updated(reader, version, signature, finite_outputs(bundle), reference.embedding)
        history.save(folder / HISTORY)
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


POINTS = 400
"""Of one line; each is the largest value of its part."""
MIN_PIXELS = 96
MARKS = {"no alarm": "✓", "harmless": "✓", "cannot tell": "!", "harmful": "✗"}
STATES = {"no alarm": "passed", "harmless": "passed", "cannot tell": "warning", "harmful": "failed"}


def render_monitor(result: MonitorResult, evidence: Evidence, log: RequestLogReader, signature: Signature) -> str:
    """Return the page; images are shown where the log still has the inputs of the samples that moved most."""
    return render_template(
        "monitor.html.j2",
        TEMPLATES,
        result=result,
        mark=MARKS[result.verdict],
        state=STATES[result.verdict],
        drawing=draw_evidence(result, evidence) if result.samples else Markup(),
        moved=[(sample, _image(sample, log, signature), _values(sample)) for sample in result.moved],
        alarms=[feature.name for feature in result.features if feature.alarm_at is not None],
    )


def draw_evidence(result: MonitorResult, evidence: Evidence) -> Markup:
    """Draw the evidence of all tests over the samples, each as a share of what raises its alarm."""
    history, lines = evidence.history, dict[str, tuple[Floats, Floats]]()
    for feature, wealth in zip(result.features, evidence.features, strict=True):
        if wealth is not None:
            lines[feature.name] = _thinned(np.arange(result.samples), wealth.log / -np.log(evidence.level))
    if evidence.risk is not None and len(history.losses):
        at = np.maximum.accumulate(history.labeled)  # labels may come in another order than their requests
        lines["labeled risk"] = _thinned(at, evidence.risk.log / -np.log(evidence.risk_level))
    with themed(300) as figure:
        axes = figure.subplots()
        top = max(1.3, min(3.0, max((float(values.max()) for _, values in lines.values()), default=1.0)))
        for number, (name, (samples, values)) in enumerate(lines.items()):
            style = "--" if number >= len(SERIES) else "-"
            color = INK if name == "labeled risk" else SERIES[number % len(SERIES)]
            axes.plot(samples, np.clip(values, -0.6, top), label=name, color=color, linestyle=style, linewidth=1.5)
        axes.axhline(1, color=MUTED, linewidth=1, linestyle=":")
        axes.text(0, 1.02, "alarm", color=MUTED, va="bottom")
        axes.set(xlabel="sample", ylabel="evidence, share of an alarm's", ylim=(-0.6, top))
        axes.grid(axis="y", color=LINE)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        alarms = ", ".join(feature.name for feature in result.features if feature.alarm_at is not None) or "none"
        return embed(
            figure, "evidence", f"Evidence of {len(lines)} tests over {result.samples} samples; alarms: {alarms}"
        )


def _thinned(samples: np.ndarray, values: Floats) -> tuple[Floats, Floats]:
    """Return at most `POINTS` points of a line; each keeps the largest value of its part."""
    starts = np.unique(np.linspace(0, len(values), POINTS, endpoint=False).astype(int))
    ends = np.append(starts[1:], len(values)) - 1
    return samples[ends].astype(np.float64), np.maximum.reduceat(values, starts)


def _values(sample: MovedSample) -> Mapping[str, float]:
    """Return the features that are shown below an image: those that the image itself does not show, as far as known."""
    return {
        name: value
        for name, value in sample.values.items()
        if (name == sample.feature or name not in IMAGE) and not np.isnan(value)
    }


def _image(sample: MovedSample, log: RequestLogReader, signature: Signature) -> str:
    """Return the sample's image as an address of data; empty where the log does not have it."""
    file, row, number = sample.place
    inputs = log.inputs((file, row)) if feature_names(signature)[: len(IMAGE)] == IMAGE else None
    return "" if inputs is None else image_address(inputs, number, signature)


def image_address(inputs: NamedArrays, number: int, signature: Signature) -> str:
    """Return one of a model's inputs, as it was before normalization, as the address of a PNG file's content."""
    how, array = signature.preprocessing, inputs[signature.inputs[0].name][number : number + 1]
    assert how is not None
    levels = restored_pixels(array, how, signature.layout)[0]
    image = Image.fromarray(levels[:, :, 0] if levels.shape[2] != 3 else levels)
    zoom = max(1, MIN_PIXELS // min(image.size))
    buffer = io.BytesIO()
    image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"

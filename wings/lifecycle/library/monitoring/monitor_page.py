"""Draw a monitor's result as one page without scripts."""

import base64
import io
from collections.abc import Mapping

import numpy as np
from markupsafe import Markup
from PIL import Image

from gauntlet.core.arrays import Floats, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.images.preprocessing import restored_pixels
from gauntlet.reporting.drawing import INK, LINE, MUTED, SERIES, embed, themed
from gauntlet.reporting.html_report import render_template
from gauntlet.request_log.input_statistics import IMAGE
from wings.lifecycle.library import TEMPLATES
from wings.lifecycle.library.log_reader import RequestLogReader
from wings.lifecycle.library.monitoring.features import feature_names
from wings.lifecycle.library.monitoring.judgment import Evidence
from wings.lifecycle.library.monitoring.monitor_result import MonitorResult, MovedSample

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

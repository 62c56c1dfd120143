"""The bundle's `README.md`, a model card: what the model is for, how it was made and proven, and how to use it.

The sections are those of Mitchell et al., Model Cards for Model Reporting, FAT* 2019, in the order and with the
metadata of Hugging Face's template (https://huggingface.co/docs/hub/model-cards).
"""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gauntlet.bundle.contract import Contract
from gauntlet.bundle.provenance import evaluation, gates_of, lineage, winner_of
from gauntlet.bundle.write import CardConfig
from gauntlet.core.run_report import BenchmarkRow, RunReport
from gauntlet.reporting import timeline
from gauntlet.reporting.markdown_report import escape
from gauntlet.reporting.text_format import milliseconds, percent, printable, size

MAX_CLASSES = 10
"""In the table of classes: those with the least recall."""
IMAGE_TASKS = {
    "classification": "image-classification",
    "segmentation": "image-segmentation",
    "text": "image-to-text",
    "embedding": "image-feature-extraction",
}
"""Hugging Face's names of tasks, for models that take images."""
ARRAY_TASKS = {"classification": "tabular-classification", "regression": "tabular-regression"}

BLANK_LINES = re.compile(r"\n{3,}")
Row = tuple[str, ...]


def model_card(contract: Contract, report: RunReport, card: CardConfig | None = None) -> str:
    """Return the text of `README.md`."""
    card, winner, forms = card or CardConfig(), winner_of(report), lineage(report)
    entries = [entry for entry in report.stages if entry.candidate in (None, *forms)]
    text = _template().render(
        metadata=yaml.safe_dump(_metadata(contract, report, card), sort_keys=False, allow_unicode=True).strip(),
        card=card,
        contract=contract,
        signature=contract.signature,
        report=report,
        winner=winner,
        lineage=forms,
        data=_facts(report, "data"),
        data_kind=_part(report.config, "data").get("kind") or "data",
        train=_facts(report, "train"),
        evaluated=_facts(report, "evaluate"),
        images=_images(report),
        results=_table(("Metric", "Value", "95 % interval"), _results(report)),
        worst_classes=_classes(report),
        base=" on ".join(f"`{name}`" for name in _base(report)),
        speed=_table(("Batch", "Median", "Speed-up", "95 % interval"), _speed(contract, report)),
        not_passed=[check for entry in entries for check in entry.checks if not check.passed],
        gates=[not any(check.blocks for check in entry.checks) for entry in gates_of(report)],
    )
    return BLANK_LINES.sub("\n\n", text)


@cache
def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=False)
    environment.trim_blocks = environment.lstrip_blocks = environment.keep_trailing_newline = True
    environment.filters.update(cell=escape, code=_code, percent=percent, size=size, table=_table)
    return environment.get_template("model_card.md.j2")


def _metadata(contract: Contract, report: RunReport, card: CardConfig) -> dict[str, Any]:
    """Return what the Hugging Face Hub reads."""
    names = IMAGE_TASKS if contract.signature.preprocessing is not None else ARRAY_TASKS
    task, score, metric = names.get(contract.signature.task), winner_of(report).accuracy, report.metric or "accuracy"
    metadata: dict[str, Any] = {"license": card.license} if card.license else {}
    metadata |= {"library_name": "onnx", "tags": ["onnx", "onnxruntime", "onnx-gauntlet"]}
    metadata |= {"pipeline_tag": task} if task else {}
    if score is None or not math.isfinite(score):
        return metadata
    data = str(_part(report.config, "data").get("kind", "data"))
    result = {
        "task": {"type": task or contract.signature.task},
        "dataset": {"type": data, "name": data, "split": "test"},
        "metrics": [{"type": metric, "value": round(score, 6)}],
    }
    return metadata | {"metrics": [metric], "model-index": [{"name": contract.name, "results": [result]}]}


def _results(report: RunReport) -> Iterator[Row]:
    """Yield the metrics of this file, then those of the network that it was made from."""
    entry, measured, count = winner_of(report), _facts(report, "accuracy", report.winner), _images(report).get("test")
    if entry.accuracy is not None:
        score = percent(entry.accuracy) if report.metric == "accuracy" else f"{float(entry.accuracy):.4f}"
        yield report.metric, score, _interval(entry.accuracy, count, report.metric)
    if change := measured.get("change"):
        ends = f"{float(change['low']):.4f} to {float(change['high']):.4f}"
        yield f"{report.metric} lost against FP32", f"{float(change['drop']):.4f}", ends
    if entry.sqnr_db is not None and math.isfinite(entry.sqnr_db):
        yield "signal to quantization noise", f"{entry.sqnr_db:.1f} dB", ""
    if own := measured.get("calibration"):
        name = "calibrated confidence" if measured.get("temperature") else "the model's own confidence"
        yield f"calibration error, log loss, Brier score of {name}", _calibration(own), ""
    evaluated = _facts(report, "evaluate")
    if ranking := evaluated.get("ranking"):
        yield "macro ROC AUC of the source network", f"{float(ranking['macro_roc_auc']):.4f}", ""
        yield "macro average precision of the source network", f"{float(ranking['macro_average_precision']):.4f}", ""
    if calibration := evaluated.get("calibration"):
        steps = {"the model's own confidence": "before", "calibrated confidence": "after"}
        for name, scores in ((name, calibration.get(key)) for name, key in steps.items()):
            if scores:
                yield f"calibration error, log loss, Brier score of {name}, source network", _calibration(scores), ""


def _calibration(scores: dict[str, Any]) -> str:
    return ", ".join(f"{float(scores[name]):.4f}" for name in ("ece", "log_loss", "brier_score"))


def _classes(report: RunReport) -> list[Row]:
    """Return the scores of the classes with the least recall: this file's, or the network's where it is the same."""
    classes = _facts(report, "accuracy", report.winner).get("classes") or _facts(report, "evaluate").get("classes")
    sampled = [score for score in classes or [] if score["images"]]
    worst = sorted(sampled, key=lambda score: float(score["recall"]))[:MAX_CLASSES]
    names = ("precision", "recall", "f1")
    return [(score["label"], *(f"{float(score[name]):.3f}" for name in names), str(score["images"])) for score in worst]


def _speed(contract: Contract, report: RunReport) -> Iterator[Row]:
    rows: dict[int, BenchmarkRow] = {r.batch: r for r in winner_of(report).benchmark if r.target == contract.target}
    for latency in contract.latencies:
        row = rows.get(latency.batch)
        faster = ("", "") if row is None or row.verdict == "reference" else _speedup(row)
        yield str(latency.batch), milliseconds(latency.median_ms), *faster


def _base(report: RunReport) -> list[str]:
    """Return the name and the target of what the speed-up is over."""
    base, rows = timeline.reference(report), timeline.reference_rows(report).values()
    return [*([base.name] if base else []), *{row.target: None for row in rows}]


def _speedup(row: BenchmarkRow) -> tuple[str, str]:
    return f"{row.mark}{row.speedup:.2f}x", f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"


def _facts(report: RunReport, stage: str, candidate: str | None = None) -> dict[str, Any]:
    entry = evaluation(report) if stage == "evaluate" else report.stage(stage, candidate)
    return dict(entry.facts) if entry else {}


def _images(report: RunReport) -> dict[str, Any]:
    return _part(_facts(report, "data"), "images")


def _part(values: Any, key: str) -> dict[str, Any]:
    part = values.get(key)
    return part if isinstance(part, dict) else {}


def _interval(value: float, count: Any, metric: str) -> str:
    """Return the 95 % interval of an accuracy on so many images (Wilson, JASA 22, 1927)."""
    if metric != "accuracy" or not isinstance(count, int) or not count:
        return ""
    share, squared = round(value * count) / count, 1.959964**2
    center, half = share + squared / 2 / count, math.sqrt(squared * (share * (1 - share) + squared / 4 / count) / count)
    return " to ".join(percent(abs(end) / (1 + squared / count)) for end in (center - half, center + half))


def _table(head: Row, rows: Iterator[Row] | list[Row]) -> str:
    """Return a Markdown table; "" without rows."""
    table = [head, ("---",) * len(head), *(tuple(map(escape, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table) if len(table) > 2 else ""


def _code(text: object) -> str:
    return " ".join(printable(str(text)).split()).replace("|", "\\|").replace("`", "'")

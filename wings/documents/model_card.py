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
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec

MAX_LABELS = 20
MAX_CLASSES = 10
RESIZE = {
    "stretch": "the whole image is stretched",
    "crop": "the largest centered part is scaled",
    "letterbox": "the whole image, between two bars of level {}, is scaled",
}
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
    card, images = card or CardConfig(), contract.signature.takes_images
    passed = sum(not any(check.blocks for check in entry.checks) for entry in gates_of(report))
    text = _template().render(
        metadata=yaml.safe_dump(_metadata(contract, report, card), sort_keys=False, allow_unicode=True).strip(),
        card=card,
        contract=contract,
        report=report,
        details=_table(("", ""), _details(contract, report, card)),
        input_name=contract.signature.inputs[0].name,
        images=images,
        training=_training(report),
        test_images=_images(report).get("test"),
        results=_table(("Metric", "Value", "95 % interval"), _results(report)),
        classes=_table(("Class", "Precision", "Recall", "F1", "Images"), _classes(report)),
        speed=_table(("Batch", "Median", "Speed-up", "95 % interval"), _speed(contract, report)),
        limits=list(_limits(contract, report)),
        gates=len(gates_of(report)),
        passed=passed,
    )
    return BLANK_LINES.sub("\n\n", text)


@cache
def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=False)
    environment.trim_blocks = environment.lstrip_blocks = environment.keep_trailing_newline = True
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


def _details(contract: Contract, report: RunReport, card: CardConfig) -> Iterator[Row]:
    signature, train, size = contract.signature, _facts(report, "train"), winner_of(report).size_bytes
    origin = {"developed by": card.developed_by, "license": card.license}
    yield from ((name, text) for name, text in origin.items() if text)
    if train:
        yield "architecture", f"{train.get('architecture')}, {train.get('parameters')} parameters"
        yield "made with", str(train.get("framework"))
    yield "form", " ← ".join(f"`{name}`" for name in lineage(report))
    yield "run", f"`{contract.run_id}`, {report.started_at}"
    yield from ((f"input `{spec.name}`", _shape(spec)) for spec in signature.inputs)
    yield from ((f"output `{spec.name}`", _shape(spec)) for spec in signature.outputs)
    if signature.preprocessing is not None:
        yield "preprocessing", _preprocessing(signature.preprocessing)
    if signature.labels:
        yield "labels", _labels(signature)
    if size is not None:
        yield "size", f"{size / 1e6:.1f} MB"


def _training(report: RunReport) -> list[str]:
    """Return sentences on data and training."""
    counts, evaluated, train = _images(report), _facts(report, "evaluate"), _facts(report, "train")
    kind, sentences = _part(report.config, "data").get("kind"), []
    if counts:
        sentences.append(f"{kind or 'data'}: {', '.join(f'{count} {split}' for split, count in counts.items())}")
    if train.get("best_epoch"):
        early = ", stopped early" if train.get("stopped_early") else ""
        epochs = len(train.get("history") or [])
        sentences.append(f"{epochs} epochs{early}; the weights of epoch {train['best_epoch']} were kept")
    if started := train.get("initial_weights"):
        head = "; its head was replaced" if started.get("replaced") else ""
        sentences.append(f"started from the weights {started['source']}{head}")
    if fit := evaluated.get("fit"):
        sentences.append(f"{fit['verdict']}: {fit['reason']}")
    if folds := evaluated.get("cross_validation"):
        ends = f"{_percent(folds['low'])} to {_percent(folds['high'])}"
        parts = f"{len(folds['accuracies'])} parts of the training split"
        sentences.append(f"cross-validation on {parts}: accuracy {_percent(folds['mean'])}, 95 % interval {ends}")
    return sentences


def _results(report: RunReport) -> Iterator[Row]:
    """Yield the metrics of this file, then those of the network that it was made from."""
    entry, measured, count = winner_of(report), _facts(report, "accuracy", report.winner), _images(report).get("test")
    if entry.accuracy is not None:
        yield report.metric, _score(entry.accuracy, report.metric), _interval(entry.accuracy, count, report.metric)
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
    worst = sorted(classes or [], key=lambda score: float(score["recall"]))[:MAX_CLASSES]
    names = ("precision", "recall", "f1")
    return [(score["label"], *(f"{float(score[name]):.3f}" for name in names), str(score["images"])) for score in worst]


def _speed(contract: Contract, report: RunReport) -> Iterator[Row]:
    rows: dict[int, BenchmarkRow] = {r.batch: r for r in winner_of(report).benchmark if r.target == contract.target}
    for latency in contract.latencies:
        row = rows.get(latency.batch)
        faster = ("", "") if row is None or row.verdict == "reference" else _speedup(row)
        yield str(latency.batch), f"{latency.median_ms:.3g} ms", *faster


def _speedup(row: BenchmarkRow) -> tuple[str, str]:
    return f"{row.speedup:.2f}x", f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"


def _limits(contract: Contract, report: RunReport) -> Iterator[str]:
    """Yield what was measured and limits the use of the model."""
    machine, evaluated = contract.processor or "the machine of the run", _facts(report, "evaluate")
    yield f"The speed was measured on {machine}, target `{contract.target}`; elsewhere it may be different."
    if winner_of(report).accuracy is None:
        yield "The data has no labels: how often the model is right is not known, only how well it keeps its outputs."
    if worst := next(iter(_classes(report)), None):
        yield f"The class with the least recall is {_cell(worst[0])}: {worst[2]} on {worst[4]} test samples."
    if contract.signature.task == "classification":
        yield _confidence_limit(contract, evaluated)
    if pairs := _facts(report, "data").get("near_duplicates"):
        yield f"At least {len(pairs)} test images resemble one of another split, so that the scores may be too good."
    entries = [entry for entry in report.stages if entry.candidate in (None, *lineage(report))]
    for check in (check for entry in entries for check in entry.checks if not check.passed):
        why = f" A person overrode it: {check.override}" if check.override else ""
        yield f"Not passed, and accepted: `{check.name}` {check.detail}.{why}"


def _confidence_limit(contract: Contract, evaluated: dict[str, Any]) -> str:
    calibration = evaluated.get("calibration")
    if contract.temperature is None or not calibration:
        return "The confidence is not calibrated: 0.9 does not mean that 90 % of such predictions are right."
    fitted = f"fitted on {calibration['fitted_images']} samples of the {calibration['fitted_on']} split"
    return (
        f"The confidence is calibrated by the temperature {contract.temperature:.3g}, {fitted} with the source "
        "network; on other data than these it may be wrong again."
    )


def _facts(report: RunReport, stage: str, candidate: str | None = None) -> dict[str, Any]:
    entry = evaluation(report) if stage == "evaluate" else report.stage(stage, candidate)
    return dict(entry.facts) if entry else {}


def _images(report: RunReport) -> dict[str, Any]:
    return _part(_facts(report, "data"), "images")


def _part(values: Any, key: str) -> dict[str, Any]:
    part = values.get(key)
    return part if isinstance(part, dict) else {}


def _score(value: float, metric: str) -> str:
    return _percent(value) if metric == "accuracy" else f"{value:.4f}"


def _interval(value: float, count: Any, metric: str) -> str:
    """Return the 95 % interval of an accuracy on so many images (Wilson, JASA 22, 1927)."""
    from scipy.stats import binomtest

    if metric != "accuracy" or not isinstance(count, int) or not count:
        return ""
    interval = binomtest(round(value * count), count).proportion_ci(method="wilson")
    return f"{_percent(interval.low)} to {_percent(interval.high)}"


def _percent(share: Any) -> str:
    return f"{100 * float(share):.1f} %"


def _table(head: Row, rows: Iterator[Row] | list[Row]) -> str:
    """Return a Markdown table; "" without rows."""
    table = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in table) if len(table) > 2 else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _labels(signature: Signature) -> str:
    more = f" and {len(signature.labels) - MAX_LABELS} more" if len(signature.labels) > MAX_LABELS else ""
    return ", ".join(signature.labels[:MAX_LABELS]) + more


def _shape(spec: TensorSpec) -> str:
    return f"{spec.dtype}, {' x '.join(map(str, spec.shape)) or 'one value'}"


def _preprocessing(how: Preprocessing) -> str:
    text = f"{RESIZE[how.resize].format(how.padding)} to {how.width} x {how.height} pixels ({how.interpolation}); "
    text += f"channels {how.channel_order}; " if len(how.mean) > 1 else "grayscale; "
    text += f"(pixel / 255 - {list(how.mean)}) / {list(how.std)}"
    text += "; all but the resizing is done by the model, whose input is the uint8 image" if how.in_graph else ""
    return text + ("; then histograms of oriented gradients" if how.hog else "")

"""Three runs by hand: one that passed, one that stopped at the numerics gate, one that stopped at the data."""

import math

import numpy as np
import pytest
from recorded_facts import with_facts

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport, StageEntry
from gauntlet.metrics.class_curves import RankedClassScore, rank_classes
from gauntlet.metrics.confidence_calibration import calibrate_confidence

LABELS = tuple(str(digit) for digit in range(10))


def artifact(name: str, size_bytes: int) -> Artifact:
    digest = (name.encode().hex() * 64)[:64]
    return Artifact(name=name, sha256=digest, size_bytes=size_bytes, path=f"{digest[:2]}/{digest}/{name}")


def check(name: str, value: float | None, op: str, limit: float, **more: object) -> Check:
    return Check.model_validate({"name": name, "value": value, "op": op, "limit": limit, **more})


def entry(stage: str, *checks: Check, candidate: str | None = None, seconds: float = 0.8, **more: object) -> StageEntry:
    known = {"cached": False, "peak_rss_bytes": 412_000_000, "facts": {}, "artifacts": {}, **more}
    made = StageEntry.model_validate(
        {"stage": stage, "candidate": candidate, "seconds": seconds, "checks": checks, **known}
    )
    return with_facts(made) if made.facts else made


def raced(batch: int, median_ms: float, speedup: float, low: float, high: float, verdict: str) -> BenchmarkRow:
    names = ("target", "batch", "median_ms", "speedup", "speedup_low", "speedup_high", "verdict")
    values = ("ort-cpu", batch, median_ms, speedup, low, high, verdict)
    return BenchmarkRow.model_validate(dict(zip(names, values, strict=True)))


def data_entry(leaked: int = 0) -> StageEntry:
    images = {"train": 1079, "validation": 179, "calibration": 179, "test": 360}
    return entry(
        "data",
        check(
            "data.leaked_images",
            leaked,
            "==",
            0,
            unit="images",
            detail="the same image is train[17] and test[203]" if leaked else "",
            remedy="remove the copies from all splits but one",
        ),
        check("data.empty_classes", 0, "==", 0, unit="classes"),
        facts={
            "images": images,
            "images_per_class": {},
            "near_duplicates": [{"test": "test[3]", "other": "train[17]", "correlation": 0.9987}],
        },
        artifacts={} if leaked else {name: artifact(f"{name}.npz", 260 * n) for name, n in images.items()},
    )


def confusion() -> list[list[int]]:
    rows = [[36 if i == j else 0 for j in range(10)] for i in range(10)]
    rows[8][1], rows[8][8] = 2, 34
    rows[3][9], rows[3][3] = 1, 35
    return rows


def of_scores() -> dict[str, object]:
    """What `evaluate` says of an overconfident model's scores."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (720, len(LABELS)))
    truth = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    scores, held_out = 3 * logits[:360], ("validation", 3 * logits[360:], truth[360:])
    counts = np.bincount(truth[:360], minlength=len(LABELS)).tolist()
    plain = tuple(
        RankedClassScore(label=x, precision=0.98, recall=0.97, f1=0.975, images=n)
        for x, n in zip(LABELS, counts, strict=True)
    )
    classes, ranking = rank_classes(scores, truth[:360], plain)
    calibration = calibrate_confidence(scores, truth[:360], held_out)
    return {
        "classes": [one.model_dump(mode="json") for one in classes],
        "calibration": calibration.model_dump(mode="json"),
        "ranking": ranking.model_dump(mode="json"),
    }


def main_line() -> list[StageEntry]:
    history = [
        {
            "epoch": n,
            "train_loss": 2.1 / n**0.8,
            "validation_loss": 1.9 / n**0.7 + (0.04 if n == 7 else 0),
            "validation_accuracy": 1 - 0.4 / n**1.7,
            "learning_rate": 1e-3 * (1 + math.cos(math.pi * n / 8)) / 2,
        }
        for n in range(1, 9)
    ]
    train = {
        "framework": "torch 2.14.0",
        "architecture": "resnet18",
        "parameters": 11_172_810,
        "best_epoch": 8,
        "stopped_early": False,
        "history": history,
    }
    evaluation = {
        **of_scores(),
        "accuracy": 0.9917,
        "train_accuracy": 1.0,
        "macro_f1": 0.9915,
        "confusion": confusion(),
        "largest_confusions": [
            {"label": LABELS[8], "prediction": LABELS[1], "images": 2},
            {"label": LABELS[3], "prediction": LABELS[9], "images": 1},
        ],
        "fit": {"verdict": "good fit", "reason": "accuracy 1.0000 on training samples, 0.9917 on test samples"},
        "cross_validation": {"accuracies": [0.97, 0.99], "mean": 0.98, "low": 0.96, "high": 1.0, "images": 1079},
    }
    return [
        data_entry(),
        entry(
            "train",
            check("train.loss", 0.21, "<", math.inf, detail="epoch 8"),
            seconds=192.4,
            cached=True,
            facts=train,
            artifacts={"model": artifact("model.pt", 44_800_000)},
        ),
        entry(
            "evaluate",
            check("evaluate.min_accuracy", 0.9917, ">=", 0.95),
            check("evaluate.min_recall", 0.9444, ">=", 0.85, detail="worst class '8', 36 samples"),
            facts=evaluation,
        ),
        entry("export", seconds=4.1, artifacts={"model": artifact("model.onnx", 44_700_000)}),
        entry("structure", check("structure.onnx_errors", 0, "==", 0)),
    ]


def numerics(error: float, candidate: str | None = None) -> StageEntry:
    failing = error > 1e-4
    place = "; first divergent tensor: /layer3/conv1/Conv_output_0" if failing else ""
    way = "look at that node; if the difference is acceptable, set numerics.max_rel_error" if failing else ""
    return entry(
        "numerics",
        check(
            "numerics.max_rel_error",
            error,
            "<=",
            1e-4,
            detail=f"worst output 'logits', real sample 4{place}",
            remedy=way,
        ),
        check("numerics.min_top1_agreement", 1.0, ">=", 1.0),
        candidate=candidate,
        seconds=1.7,
    )


def candidates() -> tuple[CandidateEntry, ...]:
    inf, base = math.inf, "onnxslim"
    rows = (
        ("fp32", None, "the reference", 0.9917, None, 44.7, [(3.91, 1, 1, 1), (24.8, 1, 1, 1)]),
        (base, "fp32", "not proven faster", 0.9917, inf, 44.6, [(3.88, 1.01, 0.98, 1.03), (24.6, 1.01, 0.99, 1.04)]),
        ("static-u8s8", base, "faster", 0.9889, 34.12, 11.3, [(1.05, 3.72, 3.65, 3.80), (8.61, 2.88, 2.61, 3.02)]),
        ("static-s8s8-per-tensor", base, "faster", 0.9861, 27.5, 11.3, [(1.86, 2.1, 1.9, 2.3), (15.2, 1.6, 1.5, 1.7)]),
        ("dynamic", base, "slower", 0.9917, 41.0, 11.2, [(6.41, 0.61, 0.59, 0.64), (51.2, 0.48, 0.47, 0.5)]),
        ("static-s8s8", base, "accuracy.max_accuracy_drop: 0.0417 must be <= 0.01", 0.95, 12.9, 11.3, []),
    )  # fmt: skip
    return tuple(
        CandidateEntry(
            name=name,
            parent=parent,
            status="accepted" if reason in {"the reference", "faster"} else "rejected",
            reason=f"{reason}: {row[0][1]:.2f}x [{row[0][2]:.2f}, {row[0][3]:.2f}] at batch 1"
            if parent and row
            else reason,
            accuracy=accuracy,
            sqnr_db=sqnr_db,
            size_bytes=int(size_mb * 1e6),
            benchmark=tuple(raced(b, *m, _verdict(name, m)) for b, m in zip((1, 8), row, strict=False)),
        )
        for name, parent, reason, accuracy, sqnr_db, size_mb, row in rows
    )


def _verdict(name: str, measured: tuple[float, ...]) -> str:
    if name == "fp32":
        return "reference"
    return "faster" if measured[2] > 1 else "slower" if measured[3] < 1 else "not resolved"


def run(**changes: object) -> RunReport:
    known = {
        "run_id": "20260502-123400-digits",
        "name": "digits-resnet18",
        "started_at": "2026-05-02T12:34:00+00:00",
        "verdict": "failed",
        "stopped_at": None,
        "reason": "",
        "winner": None,
        "seconds": 231.0,
        "environment": {"python": "3.12.4", "cpu": {"model": "Example CPU", "cores": 8}, "providers": ["CPU"]},
        "config": {"data": {"kind": "digits"}, "select": {"batch": 1, "min_speedup": 1.05}},
        "stages": (),
        "candidates": (),
        **changes,
    }
    return RunReport.model_validate(known)


@pytest.fixture
def passed() -> RunReport:
    names = [c.name for c in candidates() if c.name != "fp32"]
    drop = {"static-s8s8": 0.0417, "static-u8s8": 0.0028, "static-s8s8-per-tensor": 0.0056}
    gates = [
        entry(
            "accuracy",
            check(
                "accuracy.max_accuracy_drop",
                drop.get(name, 0.0),
                "<=",
                0.01,
                detail="360 samples",
                remedy="calibrate on more representative images, or leave sensitive nodes in float",
            ),
            candidate=name,
        )
        for name in names
    ]
    noise = check(
        "benchmark.max_aa_deviation",
        0.061,
        "<=",
        0.05,
        severity="warning",
        detail="the FP32 model against itself",
        remedy="let the machine rest, or raise benchmark.rounds",
    )
    late = [
        entry("optimize", candidate="onnxslim", seconds=2.2),
        numerics(3e-6, "onnxslim"),
        *(entry("quantize", candidate=name, seconds=3.4) for name in names[1:]),
        *gates,
        entry("benchmark", noise, seconds=21.0, facts={"aa_deviation": 0.061}),
        entry("select", check("select.min_speedup", 3.65, ">", 1.061, unit="x"), facts={"required_speedup": 1.061}),
    ]
    return run(
        verdict="passed",
        winner="static-u8s8",
        reason="3.72x [3.65, 3.80] the speed of fp32 at batch 1",
        stages=[*main_line(), numerics(8.2e-6), *late],
        candidates=candidates(),
        links={"MLflow": "http://127.0.0.1:5000/#/experiments/1", "bad": "javascript:alert(1)"},
    )


@pytest.fixture
def stopped_at_numerics() -> RunReport:
    failing = numerics(0.0123)
    return run(
        stopped_at="numerics",
        reason="\n".join(str(c) for c in failing.checks if c.blocks),
        stages=[*main_line(), failing],
    )


@pytest.fixture
def stopped_at_data() -> RunReport:
    return run(stopped_at="data", reason="2 images are in two splits", stages=[data_entry(leaked=2)], seconds=0.9)

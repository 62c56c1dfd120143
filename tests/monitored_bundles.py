"""A bundle with a reference to compare requests with, and logs of requests to it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_bundles import SIZE, brightness_bundle

from gauntlet.bundle.bundle import Bundle, seal
from gauntlet.core.arrays import NamedArrays
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.request_log.log_format import EMBEDDING, REFERENCE
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, open_embedding_session
from wings.lifecycle.library.monitoring.embedding_search import find_embedding
from wings.lifecycle.library.monitoring.monitor_result import MonitorResult
from wings.lifecycle.library.monitoring.reference import UNKNOWN, MonitoringReference


def images(seed: int, count: int, level: tuple[float, float] = (0.0, 1.0)) -> NamedArrays:
    """Return gray images whose mean is between two levels: each is dark, middle or bright."""
    random = np.random.default_rng(seed)
    means = random.uniform(*level, (count, 1, 1, 1))
    noise = random.uniform(-0.05, 0.05, (count, 1, SIZE, SIZE))
    return {"image": np.clip(means + noise, 0, 1).astype(np.float32)}


def outputs_of(bundle: Path, inputs: NamedArrays) -> NamedArrays:
    return batched_inference(open_session(bundle / "model.onnx", threads=1), inputs).run(16)


def embedded_outputs(bundle: Path, inputs: NamedArrays) -> tuple[NamedArrays, EmbeddingOutput]:
    """Return the outputs with the embedding, and where it is."""
    model = bundle / "model.onnx"
    output, plain = find_embedding(read_graph(model), "y"), open_session(model, threads=1)
    session = open_embedding_session(model, output, plain, inputs, [16], threads=1)
    return batched_inference(session, inputs).run(16), output


def monitored_bundle(
    folder: Path, *, samples: int = 300, labeled: bool = True, embedded: bool = False, **options: Any
) -> Path:
    """Make a bundle whose evaluation had images of all levels; 2 % of its labels are not what it predicts."""
    brightness_bundle(folder, latencies=[(1, 1.0), (8, 2.0)], **options)
    inputs = images(0, samples)
    outputs, where = embedded_outputs(folder, inputs) if embedded else (outputs_of(folder, inputs), UNKNOWN)
    truth = outputs["y"].argmax(axis=1)
    truth[::50] = (truth[::50] + 1) % 3
    signature = Bundle.open(folder).contract.signature
    reference = MonitoringReference.measure(signature, [(inputs, outputs)], truth if labeled else None, where)
    reference.save(folder / REFERENCE)
    seal(folder)
    return folder


def log_requests(
    log: Path,
    bundle: Path,
    inputs: NamedArrays,
    *,
    name: str = "r",
    wrong: Sequence[bool] | None = None,
    keep: str = "all",
) -> None:
    """Log one request for each sample, as a server does; `wrong` says which labels differ from the prediction."""
    opened = Bundle.open(bundle)
    writer = RequestLog(RequestLogConfig(folder=log, inputs=keep))  # type: ignore[arg-type]
    outputs = outputs_of(bundle, inputs)
    embeddings = embedded_outputs(bundle, inputs)[0][EMBEDDING] if keep == "embeddings" else None
    for i in range(len(inputs["image"])):
        one = [{key: array[i : i + 1] for key, array in arrays.items()} for arrays in (inputs, outputs)]
        writer.add(
            f"{name}-{i}",
            opened.digest[:12],
            opened.contract.signature,
            *one,
            0.001,
            None if embeddings is None else embeddings[i : i + 1],
        )
        if wrong is not None:
            label = (int(outputs["y"][i].argmax()) + int(wrong[i])) % 3
            writer.add_feedback(f"{name}-{i}", (label,))
    writer.close()


def log_failures(log: Path, digest: str, windows: int) -> None:
    """Log a failure in each of the next windows of ten seconds, by moving the clock."""
    now = time.time()
    writer = RequestLog(RequestLogConfig(folder=log))
    with pytest.MonkeyPatch.context() as patch:
        for window in range(1, windows + 1):
            patch.setattr("serving.request_log.writer.time.time", lambda at=now + 10 * window: at)
            writer.add_failure(f"failed-{window}", digest[:12], "error", 0.1)
    writer.close()


def harmful(**others: Any) -> MonitorResult:
    """Return a look at 9 samples whose labels prove harm; `others` are other fields."""
    shares = {"reference": 0, "bound": 0.1, "harm_bound": 0.1, "above": 0.2, "below": 1}
    risk = {"labeled": 9, "wrong": 8, "evidence": 2, "threshold": 1, "alarm_at": 7, **shares}
    look = {"name": "digits", "version": "0123456789ab", "samples": 9, "reference_samples": 9}
    look |= {"verdict": "harmful", "predictions": "harmful"}
    look |= {"time": "2026-11-22T12:00:00+00:00", "first": "2026-11-22T10:00:00+00:00", "reason": "", "limits": {}}
    return MonitorResult.model_validate(look | {"features": (), "risk": risk} | others)

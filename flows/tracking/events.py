"""From what happens in a run to the tracking events in its journal, which a `Sender` replays to MLflow."""

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import runtime

from configs.schema import REFERENCE, PipelineConfig
from flows.record.home import Home
from flows.record.journal import Journal
from flows.record.report_files import PARETO_FILE, REPORT_FILES
from flows.record.run import CANCELLED
from flows.tracking.flips import flip_rows
from flows.tracking.logged_model import providers
from flows.tracking.metric_names import (
    Metrics,
    candidate_metrics,
    class_metrics,
    gate_metrics,
    parent_metrics,
    quality_metrics,
    remote_metrics,
    stage_metrics,
)
from flows.tracking.sender import PARENT, Sender
from flows.tracking.server import tracking_server
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import without_password
from gauntlet.core.report import Report
from gauntlet.core.run_report import CandidateEntry, RunReport
from tasks.accuracy import AccuracyFacts
from tasks.data import DataFacts
from tasks.evaluate import EvaluateFacts
from tasks.export import ExportFacts
from tasks.numerics import NumericsFacts
from tasks.remote import RemoteFacts
from tasks.structure import StructureFacts
from tasks.train.facts import TrainFacts

MLFLOW_UI = "http://127.0.0.1:5000"
REFERENCE_FACTS = (EvaluateFacts, ExportFacts, StructureFacts, NumericsFacts)
"""Of the stages of the main line that judge the reference."""


class TrackingEvents:
    """Listens to a run: its stages become metrics and files of the parent run, its candidates child runs."""

    def __init__(self, home: Home, config: PipelineConfig, journal: Journal) -> None:
        self.home, self.config, self.journal = home, config, journal
        self.sender = Sender(home, journal.path.parent)
        self.uri, self.experiment = tracking_server(home, config)
        self.labels: tuple[str, ...] = ()
        self.test: Artifact | None = None
        self.quality: defaultdict[str, Metrics] = defaultdict(dict)  # by candidate; its speed on other machines, too
        self.details: defaultdict[str, Metrics] = defaultdict(dict)  # values of its gates, and scores of each class

    def opened(self, run_id: str) -> None:
        """Open the parent run."""
        tags = {"stage": "pipeline", "gauntlet.run_id": run_id}
        flow_run = {"id": runtime.flow_run.id, "url": runtime.flow_run.ui_url}
        tags |= {f"prefect.flow_run_{name}": str(value) for name, value in flow_run.items() if value}
        if runtime.deployment.name:
            tags["prefect.deployment"] = str(runtime.deployment.name)
        own = self.uri == self.home.mlflow_uri  # then without an address, so that the home can be moved
        where = {"uri": "" if own else without_password(self.uri), "experiment": self.experiment}
        self.journal.append("start", run=PARENT, name=run_id, pid=os.getpid(), **where, tags=tags)
        self.journal.append("params", run=PARENT, params=flatten(self.config.model_dump(mode="json")))
        self.sender.send()

    def stage_recorded(self, report: Report[Any]) -> None:
        """Send the metrics of a stage of the main line, and what its facts have for MLflow."""
        if report.candidate is None:  # a candidate's numbers, if worth a chart, go to its own run when it is closed
            self.journal.append("metrics", run=PARENT, metrics=stage_metrics(report), step=0)
        name = report.candidate or REFERENCE
        self.quality[name] |= quality_metrics(report)
        if report.candidate is not None or isinstance(report.facts, REFERENCE_FACTS):
            self.details[name] |= gate_metrics(report) | class_metrics(report)
        self._artifacts(report)
        match report.facts:
            case DataFacts() as facts:
                self._datasets(facts, report.artifacts)
            case TrainFacts() as facts:
                self.labels = facts.signature.labels
            case RemoteFacts() as facts:
                for candidate, metrics in remote_metrics(facts).items():
                    self.quality[candidate] |= metrics
            case EvaluateFacts() if report.candidate is None:
                for artifact in report.artifacts.values():
                    if artifact.name.endswith(".png"):
                        self._file(PARENT, self.home.store.path(artifact), "pictures")
            case AccuracyFacts(flips=flips) if report.candidate is not None and self.test is not None and flips:
                test = self._relative(self.home.store.path(self.test))
                self.journal.append("flips", run=report.candidate, flips=flip_rows(flips, self.labels), test=test)
        self.sender.send()

    def candidate_opened(self, candidate: CandidateEntry) -> None:
        """Open the candidate's child run."""
        params = {"candidate": candidate.name, "parent": candidate.parent or ""}
        name = f"{self.config.name}-{candidate.name}"
        self.journal.append("start", run=candidate.name, name=name, tags={"stage": "candidate", **params})
        self.journal.append("params", run=candidate.name, params=params)

    def progressed(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of one step of a stage that is at work."""
        named = {f"{stage}.{name}": value for name, value in metrics.items()}
        self.journal.append("metrics", run=PARENT, metrics=named, step=step)
        self.sender.send()

    def closed(self, report: RunReport) -> None:
        """Close all runs: the candidates with their models and metrics, the parent with the report's files."""
        for candidate in report.candidates:
            self._close_candidate(candidate, won=candidate.name == report.winner)
        for name in REPORT_FILES:
            self._file(PARENT, self.journal.path.with_name(name), "report")
        if (pareto := self.journal.path.with_name(PARETO_FILE)).is_file():
            self._file(PARENT, pareto, "pictures")
        winner = next((c for c in report.candidates if c.name == report.winner), None)
        best = candidate_metrics(winner, self.quality[winner.name]) if winner else {}
        self.journal.append("metrics", run=PARENT, metrics=parent_metrics(report, best), step=0)
        failed = report.verdict == "failed"
        tags = {
            "gate": "fail" if failed else "pass",
            "gate.reason": report.reason[:5000],
            "stopped_at": report.stopped_at or "",
            "winner": report.winner or "",
            "mlflow.note.content": self.journal.path.with_name("report.md").read_text(encoding="utf-8"),
        }
        self.journal.append("tags", run=PARENT, tags=tags)
        status = "KILLED" if report.reason == CANCELLED else "FAILED" if failed else "FINISHED"
        self.journal.append("end", run=PARENT, status=status)
        self.sender.send()

    def run_url(self) -> str | None:
        """Return where a browser finds the run in MLflow; for a local store, where `gauntlet ui` will serve it."""
        path = self.sender.run_path()
        own = without_password(self.uri) if self.uri.startswith("http") else MLFLOW_UI
        server = os.environ.get("MLFLOW_UI_URL") or own
        return f"{server.rstrip('/')}/#{path}?workflowType=machine_learning" if path else None

    def _datasets(self, facts: DataFacts, splits: Mapping[str, Artifact]) -> None:
        self.test = splits.get("test")
        for split, artifact in splits.items():
            name, source = f"{self.config.data.kind}-{split}", {"sha256": artifact.sha256, "path": artifact.path}
            content = {"digest": artifact.sha256[:36], "profile": {"images": facts.images.get(split)}}
            self.journal.append("dataset", run=PARENT, name=name, source=source, context=split, **content)

    def _artifacts(self, report: Report[Any]) -> None:
        """Send what a stage made, but for the splits, which are datasets, and the ONNX files, which are models."""
        if isinstance(report.facts, DataFacts):
            return
        for key, artifact in report.artifacts.items():
            if key in ("model", "normalized") and artifact.name.endswith(".onnx"):
                continue
            path, run = self._relative(self.home.store.path(artifact)), report.candidate or PARENT
            content = {"sha256": artifact.sha256, "size_bytes": artifact.size_bytes}
            what = {**content, "uri": self.home.store.uri(artifact)}
            self.journal.append("artifact", run=run, path=path, folder=f"artifacts/{report.stage}/{key}", **what)

    def _close_candidate(self, candidate: CandidateEntry, *, won: bool) -> None:
        gate = "pass" if candidate.status == "accepted" else "fail"
        tags = {"gate": gate, "gate.reason": candidate.reason[:5000], "winner": str(won).lower()}
        if candidate.target is not None:
            tags["target"] = candidate.target
            self.journal.append("params", run=candidate.name, params={"target": candidate.target})
        if candidate.session is not None:
            tags["session"] = json.dumps(candidate.session)
        wanted = candidate.status == "accepted" or self.config.tracking.rejected_models
        if candidate.artifact is not None and wanted:
            self.journal.append(
                "model",
                run=candidate.name,
                sha256=candidate.artifact.sha256,
                name=f"{self.config.name}-{candidate.name}",
                path=self._relative(self.home.store.path(candidate.artifact)),
                params={"candidate": candidate.name, "sha256": candidate.artifact.sha256},
                tags=tags,
                providers=providers(self.config.benchmark.target_named(candidate.target) if candidate.target else None),
            )
        metrics = candidate_metrics(candidate, self.quality[candidate.name]) | self.details[candidate.name]
        self.journal.append("metrics", run=candidate.name, metrics=metrics, step=0)
        self.journal.append("tags", run=candidate.name, tags=tags)
        self.journal.append("end", run=candidate.name, status="FINISHED")

    def _file(self, run: str, path: Path, folder: str) -> None:
        self.journal.append("file", run=run, path=self._relative(path), folder=folder)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.home.root))


def flatten(values: Any, prefix: str = "") -> dict[str, str]:
    """Return nested values as dotted names."""
    if isinstance(values, dict) and values:
        parts = [flatten(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in values.items()]
    elif isinstance(values, list) and any(isinstance(v, dict) for v in values):
        parts = [flatten(v, f"{prefix}.{i}") for i, v in enumerate(values)]
    else:
        return {prefix: str(values)}
    return {name: value for part in parts for name, value in part.items()}

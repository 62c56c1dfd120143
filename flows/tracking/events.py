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
from flows.record.journal import Journal, open_records
from flows.record.report_files import PARETO_FILE, REPORT_FILES
from flows.record.run import CANCELLED, INTERRUPTED
from flows.tracking.flips import flip_rows
from flows.tracking.metric_names import (
    Metrics,
    candidate_metrics,
    class_metrics,
    finite,
    gate_metrics,
    parent_metrics,
    stage_metrics,
)
from flows.tracking.sender import PARENT, Sender
from flows.tracking.server import own_store, tracking_server
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import without_password
from gauntlet.core.facts import Facts
from gauntlet.core.report import Report
from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.reporting.text_format import flatten
from gauntlet.targets import Target
from gauntlet.targets.ort import OrtTarget

MLFLOW_UI = "http://127.0.0.1:5000"
CPU = "CPUExecutionProvider"

GATE = {"accepted": "pass", "rejected": "fail"}
"""The tag of a candidate's run, by the candidate's status; others are their own."""

LONGEST_NOTE = 8000
"""Characters of a tag; MLflow cuts longer ones with a warning on the user's screen."""


def note(report: str) -> str:
    """Return as many first lines of a report in Markdown as a note in MLflow holds; the run has the whole file."""
    if len(report) <= LONGEST_NOTE:
        return report
    more = "\n\nThe whole report is among the run's artifacts: report/report.md\n"
    return report[: LONGEST_NOTE - len(more)].rpartition("\n")[0] + more


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
        own = own_store(self.home, self.uri) == self.home.mlflow_uri  # without an address: the home can be moved
        where = {"uri": "" if own else without_password(self.uri), "experiment": self.experiment}
        self.journal.append("start", run=PARENT, name=run_id, pid=os.getpid(), **where, tags=tags)
        self.journal.append("params", run=PARENT, params=dict(flatten(self.config.model_dump(mode="json"))))
        self.sender.send()

    def restore(self) -> None:
        """Read again what was measured of the candidates of a run whose process is gone."""
        for event in self.journal:
            if event["op"] == "measured":
                self.quality[event["candidate"]] |= event["quality"]
                self.details[event["candidate"]] |= event["details"]

    def stage_recorded(self, report: Report[Any]) -> None:
        """Send the metrics of a stage of the main line, and what its facts have for MLflow."""
        if report.candidate is None:  # a candidate's numbers, if worth a chart, go to its own run when it is closed
            self.journal.append("metrics", run=PARENT, metrics=stage_metrics(report), step=0)
        facts: Facts = report.facts
        own = report.candidate is not None or facts.of_reference
        details = gate_metrics(report) | class_metrics(facts) if own else {}
        self._measured(report.candidate or REFERENCE, finite(facts.quality()), details)
        for candidate, metrics in facts.candidate_metrics().items():
            self._measured(candidate, finite(metrics), {})
        self._artifacts(report)
        self._datasets(facts.datasets(), report.artifacts)
        self.labels = facts.outcome().labels or self.labels
        if report.candidate is None:
            for artifact in report.artifacts.values():
                if artifact.name.endswith(".png"):
                    self._file(PARENT, self.home.store.path(artifact), "pictures")
        elif self.test is not None and (flips := facts.changed_predictions()):
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
        """Close all open runs: the candidates with their models and metrics, the parent with the report's files."""
        still_open = open_records(self.journal.path.parent)  # a process that was killed may have closed some
        for candidate in report.candidates:
            if candidate.name in still_open:
                self._close_candidate(candidate, won=candidate.name == report.winner)
        for name in REPORT_FILES:
            self._file(PARENT, self.journal.path.with_name(name), "report")
        if (pareto := self.journal.path.with_name(PARETO_FILE)).is_file():
            self._file(PARENT, pareto, "pictures")
        winner = next((c for c in report.candidates if c.name == report.winner), None)
        best = candidate_metrics(winner, self.quality[winner.name], confirmed=True) if winner else {}
        self._last_metrics(PARENT, parent_metrics(report, best))
        failed = report.verdict != "passed"
        tags = {
            "gate": "fail" if failed else "pass",
            "gate.reason": report.reason[:5000],
            "stopped_at": report.stopped_at or "",
            "winner": report.winner or "",
            "mlflow.note.content": note(self.journal.path.with_name("report.md").read_text(encoding="utf-8")),
        }
        self.journal.append("tags", run=PARENT, tags=tags)
        status = "KILLED" if report.reason in (CANCELLED, INTERRUPTED) else "FAILED" if failed else "FINISHED"
        self.journal.append("end", run=PARENT, status=status)
        self.sender.send()

    def run_url(self) -> str | None:
        """Return where a browser finds the run in MLflow; for a local store, where `gauntlet up` will serve it."""
        path = self.sender.run_path()
        own = without_password(self.uri) if self.uri.startswith("http") else MLFLOW_UI
        server = os.environ.get("MLFLOW_UI_URL") or own
        return f"{server.rstrip('/')}/#{path}?workflowType=machine_learning" if path else None

    def _measured(self, candidate: str, quality: Metrics, details: Metrics) -> None:
        """Keep what was measured of a candidate until its run is closed, if need be by another process."""
        self.quality[candidate] |= quality
        self.details[candidate] |= details
        if quality or details:
            self.journal.append("measured", candidate=candidate, quality=quality, details=details)

    def _datasets(self, samples: Mapping[str, int], artifacts: Mapping[str, Artifact]) -> None:
        for split, count in samples.items():
            artifact = artifacts[split]
            self.test = artifact if split == "test" else self.test
            name, source = f"{self.config.data.kind}-{split}", {"sha256": artifact.sha256, "path": artifact.path}
            content = {"digest": artifact.sha256[:36], "profile": {"images": count}}
            self.journal.append("dataset", run=PARENT, name=name, source=source, context=split, **content)

    def _artifacts(self, report: Report[Any]) -> None:
        """Send what a stage made, but for the splits, which are datasets, and the ONNX files, which are models."""
        for key, artifact in report.artifacts.items():
            if key in report.facts.datasets():
                continue
            if key in ("model", "normalized") and artifact.name.endswith(".onnx"):
                continue
            self._artifact(report.candidate or PARENT, artifact, f"artifacts/{report.stage}/{key}")

    def _artifact(self, run: str, artifact: Artifact, folder: str) -> None:
        content = {"sha256": artifact.sha256, "size_bytes": artifact.size_bytes, "uri": self.home.store.uri(artifact)}
        path = self._relative(self.home.store.path(artifact))
        self.journal.append("artifact", run=run, path=path, folder=folder, **content)

    def _close_candidate(self, candidate: CandidateEntry, *, won: bool) -> None:
        gate = GATE.get(candidate.status, candidate.status)
        tags = {"gate": gate, "gate.reason": candidate.reason[:5000], "winner": str(won).lower()}
        if candidate.target is not None:
            tags["target"] = candidate.target
            self.journal.append("params", run=candidate.name, params={"target": candidate.target})
        if candidate.session is not None:
            tags["session"] = json.dumps(candidate.session)
        if candidate.artifact is not None and candidate.status == "accepted":
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
        elif candidate.artifact is not None and self.config.tracking.rejected_files:
            self._artifact(candidate.name, candidate.artifact, f"artifacts/{candidate.status.replace(' ', '-')}")
        metrics = candidate_metrics(candidate, self.quality[candidate.name]) | self.details[candidate.name]
        self._last_metrics(candidate.name, metrics)
        self.journal.append("tags", run=candidate.name, tags=tags)
        status = "KILLED" if candidate.status == "not decided" else "FINISHED"
        self.journal.append("end", run=candidate.name, status=status)

    def _last_metrics(self, run: str, metrics: Metrics) -> None:
        """Send the metrics of a run that ends, unless one that was killed has: each time is a point more."""
        sent = (event["metrics"] for event in self.journal if event["op"] == "metrics" and event["run"] == run)
        if metrics not in sent:
            self.journal.append("metrics", run=run, metrics=metrics, step=0)

    def _file(self, run: str, path: Path, folder: str) -> None:
        self.journal.append("file", run=run, path=self._relative(path), folder=folder)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.home.root))


def providers(target: Target | None) -> list[str]:
    """Return ONNX Runtime's providers for MLflow's loader: the one that the model was measured on, and the CPU's."""
    return list(dict.fromkeys((target.provider if isinstance(target, OrtTarget) else CPU, CPU)))

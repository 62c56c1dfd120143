"""Entries of a report whose facts are objects, as a run has them."""

from typing import Any

from pydantic import TypeAdapter

from gauntlet.core.facts import Facts
from gauntlet.core.run_report import StageEntry
from gauntlet.core.signature import Signature
from gauntlet.race.machine_load import MachineLoad
from tasks.benchmark.facts import BenchmarkFacts
from tasks.data import DataFacts
from tasks.evaluate import EvaluateFacts
from tasks.select.decision import Decision
from tasks.train.facts import TrainFacts

KINDS: dict[str, type[Facts]] = {
    "data": DataFacts,
    "train": TrainFacts,
    "evaluate": EvaluateFacts,
    "benchmark": BenchmarkFacts,
    "select": Decision,
}

ANYTHING: dict[str, dict[str, Any]] = {
    "train": {"signature": Signature.model_construct(labels=())},
    "benchmark": {"machine": MachineLoad.model_construct(other_load_cores=None), "profiles": (), "reference": "fp32"},
    "select": {"winner": None, "reason": None, "batch": None},
}
"""What a page asks for and a test need not say."""


def with_facts(entry: StageEntry, **facts: Any) -> StageEntry:
    """Return the entry with some more facts; what the page does not need may be missing."""
    kind, known = KINDS[entry.stage], {**entry.facts, **facts}
    typed = {name: TypeAdapter(kind.model_fields[name].annotation).validate_python(known[name]) for name in known}
    changed = entry.replace()
    changed._facts = kind.model_construct(**ANYTHING.get(entry.stage, {}) | typed)
    return changed

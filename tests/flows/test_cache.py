"""What changed is done again, and what follows from it; nothing else is."""

from collections.abc import Callable

import pytest
from harness import quick_config

from gauntlet.core.run_report import RunReport
from gauntlet.core.shipping import configured_stages

Run = Callable[..., RunReport]
NEVER_CACHED = {"benchmark", "explain", "select", "package"}


def repeated(report: RunReport) -> set[str]:
    """The work that was done: stage, or stage and candidate."""
    return {f"{e.stage} {e.candidate}" if e.candidate else e.stage for e in report.stages if not e.cached}


@pytest.mark.slow
def test_second_run_repeats_only_benchmark_and_choice(run: Run) -> None:
    assert repeated(run(quick_config())) == NEVER_CACHED


@pytest.mark.nightly
def test_run_without_time_has_a_short_race_and_every_gate(run: Run) -> None:
    hurried, whole = (run(quick_config("benchmark.rounds=7"), minutes=minutes) for minutes in (0.001, None))
    assert [report.stage("benchmark").facts["rounds"] for report in (hurried, whole)] == [6, 7]
    stages = [[each.stage for each in report.stages if each.candidate is None] for report in (hurried, whole)]
    assert stages[0] == stages[1]
    late = {c.name for c in hurried.candidates if c.status == "not tried"}
    assert late and "static-u8s8" not in late  # the first recipe is always tried


@pytest.mark.slow
def test_changed_quantizer_and_gate_repeat_themselves_and_what_follows_and_a_changed_benchmark_nothing(
    run: Run,
) -> None:
    config = quick_config("quantize.0.per_channel=false", "evaluate.min_accuracy=0.5", "benchmark.rounds=7")
    report = run(config)
    name = "static-u8s8-per-tensor"
    follows = ("quantize", "structure", "accuracy", *configured_stages(config, "quantized"))
    assert repeated(report) == NEVER_CACHED | {"evaluate"} | {f"{stage} {name}" for stage in follows}

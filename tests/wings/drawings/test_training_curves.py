"""The curves of a training: drawn from two epochs on, broken where a value is no number."""

import math
import re

from recorded_facts import with_facts

from gauntlet.core.run_report import RunReport
from gauntlet.frameworks.training import EpochMetrics
from gauntlet.reporting.html_report import render_html
from wings.drawings import training_curves


def epoch(number: int, loss: float, accuracy: float = 0.5, **more: float) -> EpochMetrics:
    known = {"epoch": number, "train_loss": loss, "validation_loss": loss, "learning_rate": 0.1}
    return EpochMetrics.model_validate({**known, "validation_accuracy": accuracy, **more})


def lines(svg: str) -> list[str]:
    """The paths of the first curve."""
    return re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--c0\); stroke-width: 2', svg)


def test_one_epoch_is_no_curve() -> None:
    assert training_curves.draw([]) is None
    assert training_curves.draw([epoch(1, 2.0)]) is None


def test_curves_tell_where_they_begin_and_end() -> None:
    svg = training_curves.draw([epoch(1, 2.0, 0.25), epoch(2, 1.0, 0.75)])
    assert svg is not None
    assert "Validation accuracy: 25.0 % after the first epoch, 75.0 % after the last" in svg
    assert len(lines(svg)) == 3
    more = [epoch(n, 1.0, train_accuracy=0.1 * n) for n in (1, 2)]
    assert "Training accuracy: 10.0 % after the first epoch, 20.0 % after the last" in str(training_curves.draw(more))
    assert len(lines(str(training_curves.draw(more)))) == 4


def test_a_curve_is_broken_where_a_value_is_no_number() -> None:
    whole = training_curves.draw([epoch(n, 1.0 / n) for n in range(1, 6)])
    for odd in (math.nan, math.inf, 1e300):
        broken = training_curves.draw([epoch(n, odd if n == 3 else 1.0 / n) for n in range(1, 6)])
        assert [lines(svg)[0].count("M") for svg in (whole, broken)] == [1, 2]


def test_page_says_what_the_training_started_from_and_what_was_replaced(passed: RunReport) -> None:
    started = {"source": "half.pt", "replaced": ["fc.weight", "fc.bias"], "trained_parameters": 650}
    change = {"metric": "accuracy", "n": 60, "before": 0.75, "after": 0.8833, "lost": 1, "gained": 9}
    change |= {"drop": -0.13, "low": -0.2, "high": -0.05, "mcnemar_p": 0.02}
    more = {"initial_weights": started, "fine_tuning": change}

    def tuned(entry):
        return with_facts(entry, **more) if entry.stage == "train" else entry

    html = " ".join(render_html(passed.replace(stages=tuple(map(tuned, passed.stages)))).split())
    assert "It started from the weights half.pt; 650 parameters were trained, the others frozen." in html
    assert "The head of another number of classes (fc.weight, fc.bias) was replaced by a new one." in html
    assert "Accuracy on the 60 validation images: 0.7500 before, 0.8833 now; 1 lost, 9 gained." in html
    assert "It started from" not in render_html(passed)

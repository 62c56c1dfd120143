"""Draw what came of a retraining as one page without scripts."""

from markupsafe import Markup

from gauntlet.reporting import timeline
from gauntlet.reporting.drawing import INK, LINE, MUTED, SERIES, embed, themed
from gauntlet.reporting.html_report import render_template
from gauntlet.reporting.text_format import metric_name
from wings.lifecycle.library import TEMPLATES
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts
from wings.lifecycle.library.promotion.retrain_facts import RetrainResult

STATES = {"promoted": "passed", "kept": "warning", "broke": "failed"}
MARKS = {"promoted": "✓", "kept": "!", "broke": "✗"}
TITLES = {"promoted": "Promoted", "kept": "Champion kept", "broke": "Broke"}


def render_retraining(result: RetrainResult) -> str:
    """Return the page."""
    return render_template(
        "retraining.html.j2",
        TEMPLATES,
        result=result,
        title=TITLES[result.outcome],
        mark=MARKS[result.outcome],
        state=STATES[result.outcome],
        drawing=draw_gains(result.replay) if result.replay and result.replay.gain else None,
        gates=[timeline.CheckOutcome("promote", None, check, timeline.state_of(check)) for check in result.checks],
    )


def draw_gains(replay: ReplayFacts) -> Markup:
    """Draw the change of the metric on the new and on the old samples, each with its 95 % interval."""
    assert replay.gain is not None
    rows = (("new samples", replay.gain), ("old samples", replay.change))
    metric = metric_name(replay.gain.metric, short=True)
    with themed(150) as figure:
        axes = figure.subplots()
        for y, (_, change) in enumerate(rows):
            ends = [-100 * change.high, -100 * change.low]
            axes.plot(ends, [y, y], color=SERIES[y], linewidth=3, solid_capstyle="butt")
            axes.plot([-100 * change.drop], [y], "o", color=SERIES[y])
        axes.axvline(0, color=INK, linewidth=1.5, zorder=1)
        axes.set(xlabel=f"{metric} gained, percentage points", ylim=(1.6, -0.6))
        axes.set_yticks([0, 1], [name for name, _ in rows])
        axes.tick_params(axis="x", color=MUTED)
        axes.grid(axis="x", color=LINE)
        texts = (f"{name}: {-100 * p.drop:.1f} points, {-100 * p.high:.1f} to {-100 * p.low:.1f}" for name, p in rows)
        return embed(figure, "gains", f"Gain in {metric}, with 95 % intervals. {'; '.join(texts)}.")

"""Shadow replay in real processes: what is worse is refused, and what proves nothing is refused, too."""

import re
from pathlib import Path

import numpy as np
import onnx_text
import pytest
from graded_bundles import LABELS, make_bundle, samples
from served_bundles import write_bundle

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError
from gauntlet.core.ragged import joined_samples
from gauntlet.core.signature import signature_from_graph
from gauntlet.metrics.paired_accuracy import pair_accuracies, resolve
from wings.lifecycle.library.promotion.quality import agreeing_outputs, quality_drop
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits, gain_check, replay_checks
from wings.lifecycle.library.promotion.replayed_requests import ArrayRequests
from wings.lifecycle.library.promotion.shadow_replay import ReplayedModel, gain_of, shadow_replay

pytestmark = pytest.mark.slow
QUICK = ReplayLimits(rounds=6, block_ms=5, max_slowdown=20)
"""The latency of these tests decides nothing."""
MIXED = "m (float[n,4] x) => (float[n,4] y) { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("champion") / "b", errors=0.05)


def requests(count: int = 1000) -> ArrayRequests:
    x, labels = samples(count)
    return ArrayRequests("recorded.npz", {"x": x}, np.array(LABELS)[labels])


def failed(facts: ReplayFacts, limits: ReplayLimits = QUICK) -> dict[str, str]:
    return {check.name: check.detail for check in replay_checks(facts, limits) if check.blocks}


@pytest.fixture(scope="module")
def same(champion: Bundle) -> ReplayFacts:
    """The champion against itself."""
    return shadow_replay(champion, champion, requests(), QUICK)


def test_equally_good_challenger_passes(same: ReplayFacts) -> None:
    assert (same.requests, same.change.drop, same.quality) == (1000, 0.0, "proven good")
    assert failed(same) == {}
    assert same.timed_requests >= same.rounds == 6


def test_challenger_two_points_worse_and_slower_is_refused_for_both(champion: Bundle, tmp_path: Path) -> None:
    worse = make_bundle(tmp_path / "b", errors=0.07, products=40)
    facts = shadow_replay(champion, worse, requests(), QUICK)
    assert facts.change.drop == pytest.approx(0.02)
    assert facts.quality == "proven bad"
    assert facts.slowdown > 0.05
    found = failed(facts, QUICK.replace(max_slowdown=0.05))
    assert list(found) == ["promote.max_accuracy_drop", "promote.max_slowdown"]
    assert "proven bad: 0.0200" in found["promote.max_accuracy_drop"]


def test_too_few_requests_do_not_promote_and_say_how_many_would_do(same: ReplayFacts) -> None:
    paired = pair_accuracies(np.ones(50, bool), np.ones(50, bool))
    quality, needed = resolve(paired, QUICK.max_accuracy_drop)
    facts = same.replace(change=paired, quality=quality, requests_to_resolve=needed)
    [check] = [check for check in replay_checks(facts, QUICK) if check.blocks]
    assert f"about {needed} requests (--requests)" in str(check)
    accepting = QUICK.replace(unresolved="accept")
    assert failed(facts, accepting) == {}
    above_the_limit = pair_accuracies(np.ones(50, bool), np.arange(50) > 1)
    assert failed(facts.replace(change=above_the_limit), accepting)


def test_without_labels_the_champion_is_right(champion: Bundle) -> None:
    before = {"y": np.eye(4, dtype=np.float32)[[0, 1, 2, 3]]}
    after = {"y": np.eye(4, dtype=np.float32)[[0, 1, 3, 3]]}
    pair = (champion.contract.signature,) * 2
    unlabeled = quality_drop(pair, (before, after), None)[0]
    assert (unlabeled.lost, unlabeled.gained) == (1, 0)
    labeled, scores, champion_scores, *_ = quality_drop(pair, (before, after), np.array(["ant", "ant", "dog", "dog"]))
    assert (labeled.lost, labeled.gained) == (0, 1)
    assert (champion_scores, scores) == ({"accuracy": 0.5}, {"accuracy": 0.75})


def test_unlabeled_requests_have_a_limit_of_their_own(same: ReplayFacts) -> None:
    assert replay_checks(same.replace(labeled=False), QUICK)[0].name == "promote.max_disagreement"


@pytest.mark.nightly
def test_challenger_ten_percent_slower_is_refused(tmp_path: Path) -> None:
    usual, slower = make_bundle(tmp_path / "a", products=40), make_bundle(tmp_path / "b", products=44)
    facts = shadow_replay(usual, slower, requests(400), ReplayLimits())
    assert "promote.max_slowdown" in failed(facts, ReplayLimits())


@pytest.mark.parametrize(
    ("low", "high", "verdict", "accepted"),
    [(-0.02, 0.04, "proven good", True), (0.06, 0.2, "proven bad", False), (-0.02, 0.09, "not resolved", False)],
)
def test_latency_has_three_verdicts(same: ReplayFacts, low: float, high: float, verdict: str, accepted: bool) -> None:
    facts = same.replace(slowdown=0.03, slowdown_low=low, slowdown_high=high, latency=verdict, more_rounds=8)
    limits = QUICK.replace(max_slowdown=0.05)
    checks = replay_checks(facts, limits)
    assert (not any(check.blocks for check in checks)) is accepted
    if verdict == "not resolved":
        assert "--rounds 14, or accept what is not resolved" in str(checks[-1])
        assert not replay_checks(facts, limits.replace(unresolved="accept"))[1].blocks
        beyond = [facts.replace(slowdown=0.06), limits.replace(unresolved="accept")]
        assert replay_checks(*beyond)[-1].blocks
        assert "--unresolved" not in str(replay_checks(*beyond)[-1])  # it would change nothing


def test_outputs_without_a_meaning_agree_up_to_little_noise() -> None:
    before = {"y": np.random.default_rng(0).standard_normal((5, 100)), "n": np.arange(5)}
    after = {"y": before["y"].copy(), "n": np.array([0, 1, 2, 3, 9])}
    after["y"][:2] += [[0.01], [1.0]]
    after["y"][2, 0] = np.nan
    assert agreeing_outputs(before, after).tolist() == [True, False, False, True, False]
    with pytest.raises(ConfigError, match="'n' of the champion is missing"):
        agreeing_outputs(before, {"y": after["y"]})


def test_lists_of_another_length_do_not_agree() -> None:
    lists = [np.arange(1.0, length + 1)[None] for length in (3, 5, 2)]
    before, after = joined_samples(lists), joined_samples([lists[0], lists[1][:, :3], lists[2]])
    assert agreeing_outputs({"y": before}, {"y": after}).tolist() == [True, False, True]


def test_requests_are_replayed_one_by_one_as_a_model_that_mixes_them_is_served(tmp_path: Path) -> None:
    proto, x = onnx_text.model(MIXED), np.tile(np.array([[0.7], [1e4]], np.float32), (8, 4))
    folder = write_bundle(tmp_path / "b", proto.SerializeToString(), signature_from_graph(proto), {"x": x}, name="m")
    model = ReplayedModel.prepare(Bundle.open(folder), ArrayRequests("recorded.npz", {"x": x}), tmp_path)
    assert model.outputs(tmp_path, 1, 60.0)["y"][0] == pytest.approx(0.7, rel=0.01)  # 0 beside the other


def test_challenger_must_be_proven_better_where_it_is_asked_to_be(champion: Bundle, tmp_path: Path) -> None:
    better = make_bundle(tmp_path / "b")
    won = shadow_replay(champion, better, requests(), QUICK, must_win_on=requests(400))
    assert (won.gain.after, won.gain.before) == (1.0, pytest.approx(0.95))
    assert failed(won) == {}
    check = gain_check(gain_of(champion, better, requests(20), tmp_path, QUICK), "new.npz")
    assert check.blocks
    assert int(re.search(r"about (\d+) requests would settle it", str(check))[1]) > 20


def test_challenger_that_is_as_good_or_worse_has_not_won(champion: Bundle, tmp_path: Path) -> None:
    worse = make_bundle(tmp_path / "b", errors=0.2)
    for challenger, verdict in ((champion, "not resolved"), (worse, "proven worse")):
        check = gain_check(gain_of(champion, challenger, requests(400), tmp_path, QUICK), "new.npz")
        assert check.blocks
        assert check.detail.startswith(verdict)


def test_gain_without_labels_is_refused(champion: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"new\.npz: a gain can only be proven on labeled requests"):
        gain_of(champion, champion, ArrayRequests("new.npz", {"x": samples(10)[0]}), tmp_path, QUICK)

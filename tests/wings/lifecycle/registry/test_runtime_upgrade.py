"""The champion in another ONNX Runtime: what is refused, what the ledger keeps, and how well slow-downs are found."""

import sys
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import onnxruntime
import pytest
from graded_bundles import make_bundle, samples
from simulated_races import NOISES, Noise, contender, normal, rounds

from flows.cli.main import main
from flows.record.home import Home
from gauntlet.core.errors import ConfigError, GateFailed, StageError
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.rows import rows
from gauntlet.race.table import RaceTable
from gauntlet.runtime import worker
from gauntlet.targets import environments
from wings.lifecycle.library.promotion.ledger import Entry, Ledger
from wings.lifecycle.library.promotion.replayed_requests import golden_requests
from wings.lifecycle.library.promotion.shadow_replay import CHALLENGER, CHAMPION, ReplayedModel, _race, latency_facts
from wings.lifecycle.registry.model_history import history
from wings.lifecycle.registry.runtime_upgrade import UpgradeLimits, upgrade

from .conftest import QUICK, MakeRun, aliases, ask

pytestmark = pytest.mark.slow
FAULTS = {
    "equal": "",
    "slow": "import time; old = ort.InferenceSession.run\n"
    "ort.InferenceSession.run = lambda *given: (time.sleep(0.003), old(*given))[1]",
    "inexact": "old = ort.InferenceSession.run\n"
    "ort.InferenceSession.run = lambda *given: [value + 0.2 for value in old(*given)]",
    "wrong": "old = ort.InferenceSession.run\n"
    "ort.InferenceSession.run = lambda *given: [-value for value in old(*given)]",
    "large": "ort.kept = bytearray(b'1') * 200_000_000",
    "5 %": "import time; old = ort.InferenceSession.run\ndef slower(*given):\n"
    "    began = time.perf_counter(); found = old(*given); end = time.perf_counter(); end += 0.05 * (end - began)\n"
    "    while time.perf_counter() < end: pass\n"
    "    return found\nort.InferenceSession.run = slower",
    "strict": "def refuse(*_, **__): raise ValueError('opset 18 is not supported')\nort.InferenceSession = refuse",
}
"""What is changed in a copy of the present runtime, which calls itself 9.9.9."""


LIMITS = UpgradeLimits()
CALM = MachineLoad(load_average=(0.0, 0.0), steal_share=0.0, other_load_cores=0.0, exposed=())


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """The folder of an environment, for `break_runtime`."""
    (tmp_path / "next" / "bin").mkdir(parents=True)
    return tmp_path / "next"


def break_runtime(runtime: Path, fault: str) -> str:
    """Write the environment's interpreter; return the folder."""
    start = runtime / "start.py"
    patch = f"import runpy, sys, onnxruntime as ort\nort.__version__ = '9.9.9'\n{FAULTS[fault]}\n"
    probe = "if sys.argv[1] == '-c': print(ort.__version__)\n"
    run = f"else: sys.argv = sys.argv[1:]; runpy.run_path({worker.__file__!r}, run_name='__main__')\n"
    start.write_text(patch + probe + run)
    python = runtime / "bin" / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -I "{start}" "$@"\n')
    python.chmod(0o755)
    return str(runtime)


@pytest.fixture
def champion(home: Home, run: MakeRun) -> Home:
    """A home with a champion, and requests with labels."""
    run("run-1")
    ask(home, "run-1")
    x, labels = samples(1000)
    np.savez(home.root / "requests.npz", x=x, labels=labels)
    return home


def attempt(home: Home, runtime: str, **options: str) -> Entry:
    return upgrade(home, "digits", runtime, QUICK, requests=home.root / "requests.npz", **options)


def last(home: Home) -> Entry:
    return Ledger.of(home.root, "digits").entries()[-1]


def test_equal_runtime_passes_and_the_ledger_says_so_and_nothing_else_changes(champion: Home, runtime: Path) -> None:
    entry = attempt(champion, break_runtime(runtime, "equal"))
    assert entry == last(champion)
    assert entry.runtime == f"onnxruntime {onnxruntime.__version__} to 9.9.9"
    assert [check.name for check in entry.checks] == [
        "upgrade.max_golden_error",
        "promote.max_accuracy_drop",
        "promote.max_class_drop",
        "promote.max_ranking_drop",
        "promote.max_slowdown",
        "upgrade.max_memory_growth",
    ]
    past = history(champion, "digits")
    assert (past.problem, past.outcome(entry), aliases(champion)) == (None, "passed", {"champion": "1"})


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("slow", "promote.max_slowdown"),
        ("inexact", "upgrade.max_golden_error"),
        ("large", "upgrade.max_memory_growth"),
        ("strict", "upgrade.runs"),
    ],
)
def test_runtime_that_is_worse_is_refused(champion: Home, runtime: Path, fault: str, check: str) -> None:
    with pytest.raises(GateFailed, match=check):
        attempt(champion, break_runtime(runtime, fault))
    assert [each.name for each in last(champion).checks if each.blocks] == [check]
    past = history(champion, "digits")
    assert (past.problem, past.outcome(last(champion)), aliases(champion)) == (None, "refused", {"champion": "1"})


def test_reason_lets_other_outputs_pass_but_not_other_predictions(champion: Home, runtime: Path) -> None:
    entry = attempt(champion, break_runtime(runtime, "inexact"), why="ticket 3")
    assert [check.override for check in entry.checks if not check.passed] == ["ticket 3"]
    with pytest.raises(GateFailed, match=r"promote\.max_accuracy_drop"):
        attempt(champion, break_runtime(runtime, "wrong"), why="ticket 3")


@pytest.mark.parametrize(
    ("name", "runtime", "message"),
    [
        ("digits", "onnxruntime", "not a runtime; expected onnxruntime==VERSION"),
        ("digits", "numpy==2.0", "not a runtime"),
        ("nobody", "onnxruntime==1.32.0", "no such version"),
    ],
)
def test_what_cannot_be_tried_ends_with_2_and_one_line(
    champion: Home, capsys: pytest.CaptureFixture[str], name: str, runtime: str, message: str
) -> None:
    capsys.readouterr()
    assert main(["upgrade", name, runtime]) == 2
    told = capsys.readouterr().err
    assert message in told and len(told.splitlines()) == 1


def test_environment_without_a_runtime_is_refused(champion: Home, runtime: Path) -> None:
    (runtime / "bin" / "python").write_text("#!/bin/sh\necho 'no module named onnxruntime' >&2; exit 1\n")
    (runtime / "bin" / "python").chmod(0o755)
    with pytest.raises(ConfigError, match="no ONNX Runtime in it"):
        attempt(champion, str(runtime))


@pytest.mark.nightly
def test_another_release_from_the_package_registry(champion: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "TIMEOUT_S", 300)
    release = "1.32.0" if onnxruntime.__version__ != "1.32.0" else "1.31.1"
    try:
        entry = attempt(champion, f"onnxruntime=={release}", why="another release")
    except StageError as error:
        needs.missing(f"cannot be installed here: {error}")
    assert entry.runtime.endswith(f"to {release}")


def slowed(random: np.random.Generator, noise: Noise, slowdown: float) -> str:
    """Race a runtime that adds a share of latency, on a simulated machine."""
    return verdict(rounds(random, noise, [3.0, 3.0 * (1 + slowdown)], LIMITS.rounds, [*range(LIMITS.rounds)]))


def verdict(times: np.ndarray) -> str:
    """Judge the times of champion and challenger, shape (2, rounds), by the limits of an upgrade."""
    raced = {name: contender(name, series) for name, series in zip((CHAMPION, CHALLENGER), times, strict=True)}
    measured = {name: tuple(rows(each, raced[CHAMPION], resolution=0)) for name, each in raced.items()}
    table = RaceTable(measured, (), 0.0, CALM, {}, raced, CHAMPION, LIMITS.rounds)
    return str(latency_facts(table, LIMITS)["latency"])


@pytest.mark.parametrize("noise", [normal, *NOISES.values()])
def test_slow_downs_of_5_percent_are_found_and_equal_runtimes_are_not_called_slower(noise: Noise) -> None:
    random = np.random.default_rng(5)
    assert {slowed(random, noise, 0.05) for _ in range(10)} == {"proven bad"}
    equal = [slowed(random, noise, 0.0) for _ in range(100)]
    assert "proven bad" not in equal
    assert equal.count("proven good") >= 90


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_real_slow_downs_of_5_percent_are_found_and_equal_runtimes_are_not_called_slower(runtime: Path) -> None:
    """Ten networks of 0.1 to 2 ms, and 100 races of as many rounds in a row that were measured of equal runtimes."""

    def raced(fault: str, limits: UpgradeLimits) -> np.ndarray:
        new = replace(old, environment=break_runtime(runtime, fault))
        table = _race(old, new, limits, lambda _: None)
        more = latency_facts(table, limits)["more_rounds"]  # what a refusal tells its user to add
        if more and fault != "equal" and limits.rounds == LIMITS.rounds:
            return raced(fault, limits.replace(rounds=limits.rounds + more))
        return np.array([table.contenders[name].round_quartiles_ms[1] for name in (CHAMPION, CHALLENGER)])

    found, equal = [], []
    for seed in range(10):
        bundle = make_bundle(runtime / str(seed), products=20 + 14 * seed)
        old = ReplayedModel.prepare(bundle, golden_requests(bundle), runtime)
        found.append(raced("5 %", LIMITS.replace(seed=seed)))
        equal.append(raced("equal", LIMITS.replace(seed=seed)))
    assert [verdict(times) for times in found] == ["proven bad"] * 10
    series, random = np.concatenate(equal, axis=1), np.random.default_rng(0)
    drawn = (series[:, start : start + LIMITS.rounds] for start in random.integers(0, 9 * LIMITS.rounds, 100))
    assert "proven bad" not in [verdict(times) for times in (*equal, *drawn)]

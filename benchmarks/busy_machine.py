"""Whether a race tells the ratio of two files beside other work, with timed turns that it can interrupt and without.

    python benchmarks/busy_machine.py [--races 2] [--result FILE.json]

Networks of torchvision with random weights are raced against their INT8 files, beside each kind of work in turns with
real-time priority and with the normal one. A virtual machine changes by itself, so each race is compared with the quiet
ones right before and after it: the quiet ratio meanwhile is taken to be between theirs. Run nothing else. Other work
takes caches and half of a core with two threads, too, so that a ratio beside it may truly differ: what an interval
without real-time priority must not do is to prove the wrong one.
"""

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from calibration_feeds import Feeds
from onnxruntime.quantization import QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from results import Figure, Measured, conclude, script_parser

from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.table import run_race
from gauntlet.runtime.resources import usable_threads
from tasks.benchmark import BenchmarkConfig
from wings.comparison.library.random_inputs import random_inputs

LOOP = (sys.executable, "-c", "while True: pass")
PRODUCTS = (sys.executable, "-c", "import numpy as n\nx = n.ones((900, 900))\nwhile True: x @ x")
SHORT = (sys.executable, "-c", "import subprocess as s, sys\nwhile True: s.run([sys.executable, '-c', 'pass'])")
NOTHING = "nothing"
WORK = {
    NOTHING: [],
    **{f"{n} busy loops": [LOOP] * n for n in (1, 2, 4)},
    "matrix products": [PRODUCTS],
    "short processes": [SHORT],
}
"""Commands that run beside a race, by what they are."""
DEFAULT = BenchmarkConfig()
NETWORKS = {"resnet18": 96, "mobilenet_v2": 160, "squeezenet1_1": 160}
"""Networks of torchvision, and the height and width of their images in pixels."""
Priority = Literal["normal", "realtime"]


def make_pair(architecture: str, pixels: int, folder: Path) -> tuple[Path, Path]:
    """Write a network and its INT8 file; return their paths."""
    import torch
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.get_model(architecture).eval()
    slower, faster = folder / f"{architecture}-fp32.onnx", folder / f"{architecture}-int8.onnx"
    torch.onnx.export(network, (torch.zeros(1, 3, pixels, pixels),), slower, input_names=["image"], dynamo=False)
    quant_pre_process(slower, faster)
    random = np.random.default_rng(0)
    noise = Feeds({"image": random.standard_normal((1, 3, pixels, pixels), np.float32)} for _ in range(4))
    quantize_static(faster, faster, noise, activation_type=QuantType.QUInt8, per_channel=True)
    return slower, faster


class Race(NamedTuple):
    """One race of a pair of files."""

    pair: str
    work: str
    priority: Priority
    row: BenchmarkRow
    aa_deviation: float

    @property
    def is_quiet(self) -> bool:
        """Whether it had the machine for itself, in real time."""
        return (self.work, self.priority) == (NOTHING, "realtime")

    @property
    def margin(self) -> float:
        """Half of the width of its interval, as a logarithm."""
        return math.log(self.row.speedup_high / self.row.speedup_low) / 2


class Judged(NamedTuple):
    """A race beside the quiet ones right before and after it."""

    race: Race
    quiet: tuple[float, float]
    """The lower and the higher of their ratios: in between was the quiet one when it took place."""
    distance: float
    """From there, as a share."""
    agrees: bool
    """Whether the intervals leave room for no distance."""


def judge(races: list[Race]) -> list[Judged]:
    """Compare the races of one pair, in the order in which they were made, with the quiet ones next to them."""
    judged = []
    for place, race in enumerate(races):
        sides = (reversed(races[:place]), iter(races[place + 1 :]))
        near = [found for side in sides if (found := next((r for r in side if r.is_quiet), None))]
        low, high = (end(near, key=lambda r: r.row.speedup) for end in (min, max))
        ratio, nearest = race.row.speedup, low if race.row.speedup < low.row.speedup else high
        inside = low.row.speedup <= ratio <= high.row.speedup
        distance = 0 if inside else abs(math.log(ratio / nearest.row.speedup))
        agrees = distance <= math.hypot(race.margin, nearest.margin)
        judged.append(Judged(race, (low.row.speedup, high.row.speedup), math.expm1(distance), agrees))
    return judged


@contextmanager
def beside(work: str) -> Iterator[None]:
    """Keep the commands running."""
    processes = [subprocess.Popen(command) for command in WORK[work]]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def race(slower: Path, faster: Path, work: str, priority: Priority, seed: int) -> Race:
    """Race a pair beside some work."""
    plan = Plan((1,), DEFAULT.rounds, DEFAULT.block_ms, usable_threads(), 120, seed, priority=priority)
    with tempfile.TemporaryDirectory() as folder, beside(work):
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **random_inputs(slower, 1, {}, 0))
        entries = {"slower": Entry(slower), "faster": Entry(faster)}
        table = run_race(entries, plan, "slower", inputs=inputs, resolution=DEFAULT.resolution)
    made = Race(faster.stem, work, priority, table.rows["faster"][0], table.aa_deviation)
    row = made.row
    print(f"{made.pair} beside {work}, {priority}: {row.speedup:.2f}x [{row.speedup_low:.2f}, {row.speedup_high:.2f}], "
          f"{row.verdict}, control {table.aa_deviation:.1%} apart", flush=True)  # fmt: skip
    return made


def summary(judged: list[Judged]) -> Measured:
    """Return how often the races agree with the quiet ones next to them, and how wide their intervals are."""
    rows = list[tuple[str, ...]]()
    kinds = dict.fromkeys((j.race.priority, j.race.work, j.race.pair) for j in judged)
    for priority, work, pair in sorted(kinds, key=lambda kind: (kind[0] == "normal", list(WORK).index(kind[1]))):
        some = [j for j in judged if (j.race.priority, j.race.work, j.race.pair) == (priority, work, pair)]
        middle, low, high = (
            statistics.median(getattr(j.race.row, f"speedup{end}") for j in some) for end in ("", "_low", "_high")
        )
        quiet_low, quiet_high = (statistics.median(j.quiet[end] for j in some) for end in (0, 1))
        rows.append((pair, work, priority, f"{quiet_low:.2f}x to {quiet_high:.2f}x",
                     f"{middle:.2f}x [{low:.2f}, {high:.2f}]", f"{sum(j.agrees for j in some)} of {len(some)}",
                     f"{max(j.race.aa_deviation for j in some):.1%}"))  # fmt: skip
    realtime = [j for j in judged if j.race.priority == "realtime" and not j.race.is_quiet]
    quiet = [j for j in judged if j.race.is_quiet]
    beside_4 = statistics.median(j.race.margin for j in realtime if j.race.work == "4 busy loops")
    beside_nothing = statistics.median(j.race.margin for j in quiet)
    wrong = sum(j.race.row.verdict == "slower" for j in judged if j.quiet[0] > 1.1)
    figures = (
        Figure.at_least("real-time races beside work that agree with the quiet ones next to them",
                        round(100 * statistics.mean(j.agrees for j in realtime), 1), 93, "%"),
        Figure(name="quiet races that agree with the quiet ones next to them",
               value=round(100 * statistics.mean(j.agrees for j in quiet), 1), unit="%"),
        Figure.at_most("width of real-time intervals beside 4 busy loops, relative to the quiet one",
                       round(beside_4 / beside_nothing, 2), 2, "x"),
        Figure.at_most("largest distance of a real-time race beside work from the quiet ones next to it",
                       round(100 * max(j.distance for j in realtime), 1), 5, "%"),
        Figure(name="largest distance of a quiet race from the quiet ones next to it",
               value=round(100 * max(j.distance for j in quiet), 1), unit="%"),
        Figure.exactly("wrong verdicts, both priorities", wrong),
    )  # fmt: skip
    columns = "pair", "beside", "priority", "quiet", "median race", "agrees with quiet", "control at most apart"
    conditions = f"{DEFAULT.rounds} rounds of {DEFAULT.block_ms:g} ms at batch 1, {usable_threads()} threads"
    return Measured("Other work on the machine does not bend a race with priority", conditions, figures, columns, rows)


def main() -> int:
    """Race all pairs beside all kinds of work, with a quiet race before and after each."""
    parser = script_parser(__doc__)
    parser.add_argument("--races", type=int, default=2, help="of each pair beside each kind of work, by each priority")
    options = parser.parse_args()
    judged = list[Judged]()
    with tempfile.TemporaryDirectory() as folder:
        for architecture, pixels in NETWORKS.items():
            pair = make_pair(architecture, pixels, Path(folder))
            races = [race(*pair, NOTHING, "realtime", 0)]
            for seed in range(options.races):
                for work in WORK:
                    busy: tuple[Priority, ...] = ("normal",) if work == NOTHING else ("realtime", "normal")
                    races += [race(*pair, work, priority, seed) for priority in busy]
                    races.append(race(*pair, NOTHING, "realtime", seed))
            judged += judge(races)
    return conclude(summary(judged), "measurement", options.result)


if __name__ == "__main__":
    sys.exit(main())

"""Whether a race tells the ratio of two files beside other work, with timed turns that it can interrupt and without.

    python benchmarks/busy_machine.py [--quiet-races 5] [--races 2] [--result FILE.json]

Networks of torchvision with random weights are raced against their INT8 files. A pair's ratio is the median of its
real-time races with no other work, so run nothing else. Then each pair is raced beside each kind of work, in turns with
real-time priority and with the normal one. Other work takes caches and half of a core with two threads, too, so that a
ratio beside it may truly differ: what an interval without real-time priority must not do is to prove the wrong one.
"""

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
WORK = {
    "nothing": [],
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


def summary(races: list[Race]) -> Measured:
    """Return how often the intervals cover the quiet ratio, and how wide they are."""
    quiet = {
        pair: statistics.median(
            r.row.speedup for r in races if (r.pair, r.work, r.priority) == (pair, "nothing", "realtime")
        )
        for pair in dict.fromkeys(r.pair for r in races)
    }
    covered = {r: r.row.speedup_low <= quiet[r.pair] <= r.row.speedup_high for r in races}
    width = {r: r.row.speedup_high / r.row.speedup_low - 1 for r in races}
    rows = list[tuple[str, ...]]()
    for priority in ("realtime", "normal"):
        for work in WORK:
            for pair, ratio in quiet.items():
                some = [r for r in races if (r.pair, r.work, r.priority) == (pair, work, priority)]
                middle, low, high = (
                    statistics.median(getattr(r.row, f"speedup{end}") for r in some) for end in ("", "_low", "_high")
                )
                apart = max(r.aa_deviation for r in some)
                rows.append((pair, f"{ratio:.2f}x", work, priority, f"{middle:.2f}x [{low:.2f}, {high:.2f}]",
                             f"{sum(covered[r] for r in some)} of {len(some)}", f"{apart:.1%}"))  # fmt: skip
    realtime = [r for r in races if r.priority == "realtime"]
    share = 100 * statistics.mean(covered[r] for r in realtime)
    beside_nothing, beside_4 = (
        statistics.median(width[r] for r in realtime if r.work == work) for work in ("nothing", "4 busy loops")
    )
    distance = 100 * max(abs(r.row.speedup / quiet[r.pair] - 1) for r in realtime)
    wrong = sum(r.row.verdict == "slower" for r in races if quiet[r.pair] > 1.1)
    figures = (
        Figure.at_least("real-time races whose interval covers the quiet ratio", round(share, 1), 93, "%"),
        Figure.at_most("width of real-time intervals beside 4 busy loops, relative to the quiet one",
                       round(beside_4 / beside_nothing, 2), 2, "x"),
        Figure.at_most("largest distance of a real-time race from the quiet ratio", round(distance, 1), 5, "%"),
        Figure.exactly("wrong verdicts, both priorities", wrong),
    )  # fmt: skip
    columns = "pair", "quiet", "beside", "priority", "median race", "covers the quiet ratio", "control at most apart"
    conditions = f"{DEFAULT.rounds} rounds of {DEFAULT.block_ms:g} ms at batch 1, {usable_threads()} threads"
    return Measured("Other work on the machine does not bend a race with priority", conditions, figures, columns, rows)


def main() -> int:
    """Race all pairs beside all kinds of work."""
    parser = script_parser(__doc__)
    parser.add_argument("--quiet-races", type=int, default=5, help="of each pair, with priority, beside nothing")
    parser.add_argument("--races", type=int, default=2, help="of each pair beside each kind of work, by each priority")
    options = parser.parse_args()
    priorities: tuple[Priority, ...] = "realtime", "normal"
    with tempfile.TemporaryDirectory() as folder:
        pairs = [make_pair(architecture, pixels, Path(folder)) for architecture, pixels in NETWORKS.items()]
        races = [race(*pair, "nothing", "realtime", seed) for seed in range(options.quiet_races) for pair in pairs]
        races += [
            race(*pair, work, priority, seed)
            for seed in range(options.races)
            for work in WORK
            for pair in pairs
            for priority in priorities
            if (work, priority) != ("nothing", "realtime")
        ]
    return conclude(summary(races), "measurement", options.result)


if __name__ == "__main__":
    sys.exit(main())

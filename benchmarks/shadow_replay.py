"""How often a shadow replay calls a champion and its own copy different, and whether it finds what is worse.

    python benchmarks/shadow_replay.py [--pairs N] [--kind same|slower|worse]... [--notes FILE] [--result FILE.json]

`same` replays a bundle against a copy, `slower` against one with 10 % more matrix products, `worse` against one that
errs on 2 points more of the requests. The model is a chain of matrix products beside a classifier whose errors are set.
It can be done in pieces: each adds its replays to the notes and sums all up.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser
from results import Figure, add_result_option, write_result

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, Bundle, seal
from gauntlet.bundle.contract import Contract
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.promotion.replay_facts import ReplayLimits, replay_checks
from gauntlet.promotion.requests import ArrayRequests
from gauntlet.promotion.shadow_replay import shadow_replay

CLASSES, SIZE, REQUESTS = 10, 128, 2000
PRODUCTS, ERRORS = 40, 0.05
KINDS = {"same": (PRODUCTS, ERRORS), "slower": (PRODUCTS + PRODUCTS // 10, ERRORS), "worse": (PRODUCTS, ERRORS + 0.02)}
TOLD = {"same": "its own copy", "slower": "10 % slower", "worse": "2 points worse"}
DIFFERENT = "proven bad"


def network(products: int, errors: float) -> onnx.ModelProto:
    """Return a classifier that errs where the last feature is below `errors`, beside so many matrix products."""
    steps = " ".join(f"m{i} = MatMul(h{i}, w{i}) h{i + 1} = Relu(m{i})" for i in range(products))
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        network (float[batch,{SIZE}] x) => (float[batch,{CLASSES}] y)
        {{
            right = MatMul(x, pick)
            flag = MatMul(x, tell)
            errs = Less(flag, share)
            factor = Cast<to=1>(errs)
            other = MatMul(right, shift)
            wrong = Mul(other, factor)
            h0 = Identity(x)
            {steps}
            zero = MatMul(h{products}, nothing)
            y = Sum(right, wrong, zero)
        }}
    """)
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((SIZE, SIZE)) / SIZE**0.5 for i in range(products)}
    pick, tell = np.zeros((SIZE, CLASSES)), np.zeros((SIZE, 1))
    pick[:CLASSES], tell[-1] = np.eye(CLASSES), 1
    weights |= {"pick": pick, "tell": tell, "shift": 2 * np.roll(np.eye(CLASSES), 1, axis=1)}
    weights |= {"share": np.array([errors]), "nothing": np.zeros((SIZE, CLASSES))}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    model.graph.initializer.extend(tensors)
    return model


def bundle(folder: Path, kind: str) -> Bundle:
    """Write a bundle of one kind."""
    folder.mkdir()
    onnx.save(network(*KINDS[kind]), folder / MODEL)
    np.savez(folder / GOLDEN, **{"inputs/x": np.zeros((1, SIZE)), "outputs/y": np.zeros((1, CLASSES))})
    spec = (("x", SIZE), ("y", CLASSES))
    x, y = (TensorSpec(name=name, dtype="float32", shape=("batch", size)) for name, size in spec)
    signature = Signature(inputs=(x,), outputs=(y,), primary_output="y", layout="none")
    contract = Contract(name="chain", run_id=folder.name, candidate=kind, signature=signature, target="ort-cpu")
    (folder / CONTRACT).write_text(contract.model_dump_json())
    seal(folder)
    return Bundle.open(folder)


def requests(seed: int) -> ArrayRequests:
    """Return random requests with their labels."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((REQUESTS, SIZE)).astype(np.float32)
    labels = random.integers(0, CLASSES, REQUESTS)
    x[:, :CLASSES] = np.eye(CLASSES)[labels]
    x[:, -1] = random.random(REQUESTS)
    return ArrayRequests(f"random, seed {seed}", {"x": x}, labels.astype(np.str_))


def replay(folder: Path, kind: str, seed: int, notes: Path) -> None:
    """Replay the champion against one kind of challenger; add a line to the notes."""
    champion, challenger = bundle(folder / "champion", "same"), bundle(folder / "challenger", kind)
    limits, start = ReplayLimits(seed=seed), time.monotonic()
    facts = shadow_replay(champion, challenger, requests(seed), limits)
    note: dict[str, Any] = facts.model_dump(mode="json", exclude={"champion", "source"})
    note |= {"kind": kind, "seed": seed, "seconds": time.monotonic() - start}
    note["refused"] = any(check.blocks for check in replay_checks(facts, limits))
    with notes.open("a") as file:
        file.write(json.dumps(note) + "\n")
    print(f"{kind} {seed}: quality {facts.quality}, latency {facts.latency} ({facts.slowdown:+.1%})", flush=True)


def summary(notes: Path) -> dict[str, Any]:
    """Return all replays of the notes as a result."""
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    by_kind = {kind: [note for note in found if note["kind"] == kind] for kind in KINDS}
    figures, rows = [], []
    for kind, replays in by_kind.items():
        if not replays:
            continue
        count, refused = len(replays), sum(note["refused"] for note in replays)
        different = sum(DIFFERENT in (note["quality"], note["latency"]) for note in replays)
        if kind == "same":
            met = {"goal": "at most 5 of 100", "met": different <= 0.05 * count}
            figures.append(Figure(name="copies called different", value=different, unit=f"of {count}", **met))
            figures.append(Figure(name="copies promoted", value=count - refused, unit=f"of {count}"))
        else:
            met = {"goal": "all", "met": refused == count}
            figures.append(Figure(name=f"{TOLD[kind]}: refused", value=refused, unit=f"of {count}", **met))
        latency, quality = (Counter(note[which] for note in replays) for which in ("latency", "quality"))
        calls = statistics.median(note["timed_requests"] for note in replays)
        told = [f"{name} {answers[name]}" for answers in (quality, latency) for name in sorted(answers)]
        split = len(quality)
        rows.append((TOLD[kind], ", ".join(told[:split]), ", ".join(told[split:]), str(REQUESTS), f"{calls:.0f}"))
    limits = ReplayLimits()
    return {
        "claim": "A shadow replay promotes a copy and refuses what is worse",
        "conditions": f"{REQUESTS} labeled requests, {limits.rounds} rounds of {limits.block_ms:.0f} ms, limits: "
        f"{limits.max_accuracy_drop:.0%} of accuracy, {limits.max_slowdown:.0%} of latency; other work ran meanwhile",
        "figures": figures,
        "columns": ("challenger", "quality", "latency", "requests answered", "timed requests of each"),
        "rows": rows,
    }


def main() -> None:
    """Do what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100, help="replays of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first, where others were run before")
    parser.add_argument("--kind", choices=KINDS, action="append", help="by default all")
    parser.add_argument("--notes", type=Path, default=Path("replays.jsonl"), help="a line a replay, all summed up")
    add_result_option(parser)
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.pairs):
        for kind in options.kind or KINDS:
            with tempfile.TemporaryDirectory() as name:
                replay(Path(name), kind, seed, options.notes)
    found = summary(options.notes)
    for figure in found["figures"]:
        print(f"{figure.name}: {figure.value:.0f} {figure.unit}")
    if options.result:
        write_result(options.result, topic="promotion", **found)


if __name__ == "__main__":
    main()

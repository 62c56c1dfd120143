"""Race the winner with its preprocessing in the graph against the winner as it is: from uint8 images to outputs.

All contenders get images of the model's size. Those that take normalized inputs preprocess in every timed call, by the
code that callers use; decoding and resizing are the same for all, and are not timed.
"""

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from gauntlet.benchmarking.budget import NO_BUDGET, Budget, over_budget
from gauntlet.benchmarking.contender import Contender, RaceEntry
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import aa_deviation, row, rows
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines import ort_images
from gauntlet.runtime.session import open_session
from tasks.benchmark.config import BenchmarkConfig
from tasks.confirm import ConfirmFacts
from tasks.select import SelectConfig


class DuelFacts(Frozen):
    """The winner with its preprocessing in the graph, against itself with the preprocessing on the host."""

    candidate: str
    opponent: str = Field(description="the winner so far; its preprocessing is on the host, and is timed")
    batch: int = Field(description="the batch size that decided")
    against: BenchmarkRow = Field(description="the candidate against the opponent at that batch size")
    required_speedup: Number
    aa_deviation: Number
    rows: tuple[BenchmarkRow, ...] = Field(description="against FP32 with its preprocessing on the host")
    won: bool
    reason: str
    final: ConfirmFacts = Field(description="the decision of the run after this race")


def duel(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    select: SelectConfig,
    batch: int,
    final: ConfirmFacts,
    candidate: str,
    models: Mapping[str, Artifact],
    golden: Artifact,
    budget: Budget = NO_BUDGET,
) -> Report[DuelFacts]:
    """Race the candidate, the winner so far and the reference, in the winner's session; decide at a batch size.

    `models` holds the reference first, then the others by name; `golden` has images as the real inputs. The candidate
    wins when it is proven faster by the margin of the stage `select`, and is within the budget.

    Raises:
        StageError: when one of them cannot be measured.
    """
    reference = next(iter(models))
    contenders = _race(config, workspace, final.target, models, golden, candidate)
    base, opponent, own = (contenders[name] for name in (reference, final.winner, candidate))
    found = rows(own, base, resolution=config.resolution)
    batch = batch if batch in own.batches else own.batches[0]
    against = row(own, opponent, batch, resolution=config.resolution)
    deviation = aa_deviation(contenders[CONTROL], base)
    required = float(np.maximum(select.min_speedup, 1 + deviation))
    over = over_budget(budget.checks(candidate, found, models[candidate].size_bytes))
    interval = f"{against.speedup:.2f}x [{against.speedup_low:.2f}, {against.speedup_high:.2f}]"
    measured = f"{interval} as fast as {final.winner} from uint8 image to output, at batch {batch}"
    won = against.speedup_low > required and not over
    objection = over or f"not proven more than {required:.3g}x faster with its preprocessing in the graph"
    reason = measured if won else f"{objection}: {measured}"
    facts = DuelFacts(
        candidate=candidate,
        opponent=final.winner,
        batch=batch,
        against=against,
        required_speedup=required,
        aa_deviation=deviation,
        rows=found,
        won=won,
        reason=reason,
        final=final.replace(
            winner=candidate, reason=f"{reason}; before, {final.winner} won: {final.reason}", rows=found
        )
        if won
        else final,
    )
    fix = f"{final.winner} wins, and its callers preprocess"
    check = Check.of("duel.min_speedup", against.speedup_low, ">", required, reason, fix, unit="x", severity="warning")
    noise = Check.of("duel.max_aa_deviation", deviation, "<=", config.max_aa_deviation, severity="warning")
    return Report(stage="duel", facts=facts, checks=(check, noise))


def _race(
    config: BenchmarkConfig,
    workspace: Workspace,
    target: str,
    models: Mapping[str, Artifact],
    golden: Artifact,
    candidate: str,
) -> dict[str, Contender]:
    """Measure every model from images; the reference also as its own control."""
    options = config.target_named(target).options()
    paths = {name: workspace.path(model) for name, model in models.items()}
    [(name, images)] = Golden.load(workspace.path(golden)).real.inputs.items()
    inference = batched_inference(open_session(paths[candidate], level="off"), {name: images})
    sizes = tuple(dict.fromkeys(inference.batch(size) for size in config.batch_sizes))
    np.savez(
        workspace.folder / "images.npz",
        allow_pickle=False,
        **{name: np.resize(images, (max(sizes), *images.shape[1:]))},
    )
    entries: dict[str, RaceEntry] = {}
    for model, path in paths.items():
        signature = Signature.read(read_graph(path)).model_dump_json()
        host: JsonObject = {"engine": ort_images.MODULE, "signature": signature, "image_input": name}
        entries[model] = RaceEntry(path, options=options | ({} if model == candidate else host), target=target)
    reference = next(iter(paths))
    outcome = race(
        {**entries, CONTROL: entries[reference]},
        workspace.folder / "images.npz",
        config.replace(early_stopping=False, seed=config.seed + 2).plan(sizes),
        keep=(reference, CONTROL),
        on_round=lambda done: workspace.progress(done, config.rounds, "round"),
    )
    for title, contender in outcome.contenders.items():
        if contender.failure or math.isnan(contender.repeatability_db):
            raise StageError(f"'{title}' cannot be measured from images: {contender.failure}")
    return outcome.contenders

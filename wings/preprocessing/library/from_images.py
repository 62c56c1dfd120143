"""Race the winner with its preprocessing in the graph against the winner as it is: from uint8 images to outputs.

All contenders get images of the model's size. Those that take normalized inputs preprocess in every timed call, by the
code that callers use; decoding and resizing are the same for all, and are not timed.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gauntlet.core.arrays import write_arrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Outcome
from gauntlet.core.frozen import JsonObject
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CandidateEntry
from gauntlet.core.signature import Signature
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.race.budget import NO_BUDGET, Budget, over_budget
from gauntlet.race.contender import Entry
from gauntlet.race.objective import speedup_text
from gauntlet.race.rows import row
from gauntlet.race.table import RaceTable, run_race
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.benchmark.config import BenchmarkConfig
from tasks.select.config import SelectConfig
from tasks.select.decision import Decision, FromImages
from wings.preprocessing.library import ort_images


class ImageDecision(Decision):
    """The decision, with the race that may have changed its winner."""

    from_images: FromImages

    def candidate_changes(self, candidates: Mapping[str, CandidateEntry]) -> Mapping[str, Mapping[str, Any]]:
        """Return the verdict on the candidate that takes images."""
        images, opponent = self.from_images, candidates[self.from_images.opponent]
        status = "accepted" if images.won else "rejected"
        change = {"benchmark": images.rows, "status": status, "reason": images.reason}
        return {images.candidate: change | {"target": opponent.target, "session": opponent.session}}

    def outcome(self) -> Outcome:
        """Return the winner; what was said beside it stays, unless it is another one."""
        return Outcome(winner=self.winner, reason=self.reason, beside="" if self.from_images.won else None)


@stage(measured=True)
def from_images(
    config: SelectConfig,
    workspace: Workspace,
    *,
    decision: Decision,
    benchmark: BenchmarkConfig,
    models: Mapping[str, Artifact],
    golden: Artifact,
    budget: Budget = NO_BUDGET,
) -> Report[ImageDecision]:
    """Race the last model, the winner so far and the reference in the winner's session; decide as before.

    `models` holds the reference first, then the winner, then the candidate with its preprocessing in the graph;
    `golden` has images as the real inputs. The candidate wins when it is proven faster by the margin, and is within the
    budget.

    Raises:
        StageError: when one of them cannot be measured.
    """
    candidate, winner = [*models][-1], decision.winner
    table = _race(benchmark, workspace, decision.target, models, golden)
    own, rows = table.contenders[candidate], table.rows[candidate]
    batch = decision.batch if decision.batch in own.batches else own.batches[0]
    against = row(own, table.contenders[winner], batch, resolution=benchmark.resolution)
    mine, other = (next(row for row in table.rows[name] if row.batch == batch) for name in (candidate, winner))
    if mine.mark or other.mark:  # other work disturbed these rounds
        gain, low, high = mine.over(other)
        against = against.replace(speedup=gain, speedup_low=low, speedup_high=high)
    required = float(np.maximum(config.min_speedup, 1 + table.aa_deviation))
    over = over_budget(budget.checks(candidate, rows, models[candidate].size_bytes))
    measured = f"{speedup_text(against)} as fast as {winner} from uint8 image to output, at batch {batch}"
    won = against.speedup_low > required and not over
    objection = over or f"not proven more than {required:.3g}x faster with its preprocessing in the graph"
    reason = measured if won else f"{objection}: {measured}"
    images = FromImages(
        candidate=candidate,
        opponent=winner,
        batch=batch,
        against=against,
        required_speedup=required,
        aa_deviation=table.aa_deviation,
        rows=rows,
        won=won,
        reason=reason,
    )
    fix = f"{winner} wins, and its callers preprocess"
    low, noise = against.speedup_low, table.aa_deviation
    checks = (
        Check.of("from_images.min_speedup", low, ">", required, reason, fix, unit="x", severity="warning"),
        Check.of("from_images.max_aa_deviation", noise, "<=", benchmark.max_aa_deviation, severity="warning"),
    )
    if won:
        decision = decision.replace(winner=candidate, reason=f"{reason}; before, {winner} won: {decision.reason}")
    return Report(facts=ImageDecision(**dict(decision) | {"from_images": images}), checks=checks)


def _race(
    first: BenchmarkConfig, workspace: Workspace, target: str, models: Mapping[str, Artifact], golden: Artifact
) -> RaceTable:
    """Measure every model from images; all but the last preprocess on the host."""
    options = first.target_named(target).options()
    paths = {name: workspace.path(model) for name, model in models.items()}
    reference, candidate = next(iter(paths)), [*paths][-1]
    [(name, images)] = Golden.load(workspace.path(golden)).real.inputs.items()
    inference = batched_inference(open_session(paths[candidate], level="off"), {name: images})
    sizes = tuple(dict.fromkeys(inference.batch(size) for size in first.batch_sizes))
    inputs = workspace.folder / "images.npz"
    write_arrays(inputs, {name: np.resize(images, (max(sizes), *images.shape[1:]))})
    entries: dict[str, Entry] = {}
    for model, path in paths.items():
        signature = Signature.read(read_graph(path)).model_dump_json()
        host: JsonObject = {"engine": ort_images.MODULE, "signature": signature, "image_input": name}
        entries[model] = Entry(path, options=options | ({} if model == candidate else host), target=target)
    table = run_race(
        entries,
        first.replace(early_stopping=False).plan(sizes),
        reference,
        inputs=inputs,
        resolution=first.resolution,
        on_round=lambda done: workspace.progress(done, first.rounds, "round"),
    )
    for title, contender in table.contenders.items():
        if contender.failure or math.isnan(contender.repeatability_db):
            raise StageError(f"'{title}' cannot be measured from images: {contender.failure}")
    return table

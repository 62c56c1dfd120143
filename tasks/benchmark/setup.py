"""What a benchmark needs before any worker starts: the entries, their inputs, and the plan of the race."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gauntlet.core.arrays import write_arrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.race.confidence import CONFIDENCE, least_rounds
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.session_options import session_entries
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.benchmark.config import BenchmarkConfig


def prepare(
    config: BenchmarkConfig,
    workspace: Workspace,
    models: Mapping[str, Artifact],
    golden: Artifact,
    limit_s: float | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[dict[str, Entry], Path, Plan]:
    """Return the entries, the file of their inputs, and the plan with the batch sizes that the reference accepts.

    The entries are the models in every session variant, each model's first one under its own name. With `limit_s`, the
    race may be as short as intervals of the confidence allow.

    Raises:
        StageError: when the reference cannot be measured.
    """
    reference, first = next(iter(models)), config.targets[0]
    if first.environment and (reason := first.unavailable()):
        raise StageError(f"the first target, {first.name}, cannot run here: {reason}")
    entries = session_entries(models, config.all_sessions, workspace)
    try:
        session = open_session(entries[reference].model, level="off")
        inference = batched_inference(session, Golden.load(workspace.path(golden)).real.inputs)
    except StageError as error:
        raise StageError(f"the reference '{reference}' cannot be measured: {error}") from error
    batch_sizes = tuple(dict.fromkeys(inference.batch(size) for size in config.batch_sizes))
    largest = max(batch_sizes)
    samples = {name: np.resize(array, (largest, *array.shape[1:])) for name, array in inference.samples.items()}
    path = workspace.folder / "inputs.npz"
    write_arrays(path, samples)
    plan = replace(config.plan(batch_sizes), limit_s=limit_s, least_rounds=least_rounds(confidence))
    return entries, path, plan

"""What a benchmark needs before any worker starts: the inputs, the contenders, and the plan of the race."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gauntlet.benchmarking.contender import RaceEntry, RacePlan
from gauntlet.benchmarking.session_options import entries
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.targets import trusting
from gauntlet.targets.base import BaseTarget
from tasks.benchmark.config import BenchmarkConfig


@dataclass(frozen=True)
class BenchmarkSetup:
    """The plan of a benchmark before any worker starts."""

    reference: str
    paths: Mapping[str, Path]
    """Candidate name -> model file."""
    sizes: Mapping[str, int]
    """Candidate name -> size in bytes, with weights."""
    entries: Mapping[str, RaceEntry]
    """Contender name -> a candidate in one session variant of the first target."""
    inputs: Path
    plan: RacePlan
    deployable: tuple[BaseTarget, ...]
    """Targets on which the winner may be deployed."""
    comparison_only: tuple[BaseTarget, ...]


def prepare(
    config: BenchmarkConfig, workspace: Workspace, models: Mapping[str, Artifact], golden: Artifact
) -> BenchmarkSetup:
    """Write the inputs, and plan the race with the batch sizes that the reference accepts."""
    reference, first = next(iter(models)), config.targets[0]
    if first.env and (reason := first.unavailable()):
        raise StageError(f"the first target, {first.name}, cannot run here: {reason}")
    race_entries = entries(models, config.all_sessions, workspace)
    try:
        session = open_session(race_entries[reference].model, level="off")
        inference = batched_inference(session, Golden.load(workspace.path(golden)).real.inputs)
    except StageError as error:
        raise StageError(f"the reference '{reference}' cannot be measured: {error}") from error
    batch_sizes = tuple(dict.fromkeys(inference.batch(size) for size in config.batch_sizes))
    largest = max(batch_sizes)
    samples = {name: np.resize(array, (largest, *array.shape[1:])) for name, array in inference.samples.items()}
    np.savez(workspace.folder / "inputs.npz", allow_pickle=False, **samples)
    return BenchmarkSetup(
        reference=reference,
        paths={name: race_entries[name].model for name in models},
        sizes={name: artifact.size_bytes for name, artifact in models.items()},
        entries=race_entries,
        inputs=workspace.folder / "inputs.npz",
        plan=config.plan(batch_sizes),
        deployable=tuple(t for t in config.other_targets if t.name in config.deploy_targets),
        # the framework's file is an artifact of this run
        comparison_only=trusting(t for t in config.other_targets if t.name not in config.deploy_targets),
    )

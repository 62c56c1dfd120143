"""Races on other machines as the stage `remote` records them."""

import reported_runs

from gauntlet.core.run_report import BenchmarkRow, RunReport, StageEntry
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.target_examiner import ModelOnTarget
from gauntlet.targets import OrtCpu
from wings.machines.library.remote import Machine, RemoteFacts, RemoteRace
from wings.providers.openvino import OpenVino

HERE = {"host": "builder", "processor": "Xeon Gold 6330", "instructions": ["avx512_vnni"]}
THERE = Machine(
    host="orin-7",
    platform="Linux-5.15-tegra-aarch64",
    processor="ARM Cortex-A78AE",
    instructions=("asimddp",),
    usable_threads=12,
    memory_gb=32.0,
    python="3.11.9",
)
ON_ORIN = OrtCpu(spinning=False, on="jetson")
ABSENT = OpenVino(on="gpu")
LOST = OrtCpu(on="shelf")
MODELS = {"fp32": None, "int8": None}
"""Only the names matter."""


def row(target: str, median_ms: float, speedup: float, verdict: str) -> BenchmarkRow:
    return reported_runs.raced(1, median_ms, speedup, speedup - 0.1, speedup + 0.1, verdict).replace(target=target)


def raced(aa_deviation: float = 0.012) -> RemoteRace:
    """Return a race of two models on another machine."""
    gains = {"fp32": row(ON_ORIN.name, 41.0, 0.98, "not resolved"), "int8": row(ON_ORIN.name, 12.5, 3.2, "faster")}
    results = tuple(
        ModelOnTarget(candidate=name, target=ON_ORIN.name, status="measured", rows=(one,), aa_deviation=aa_deviation)
        for name, one in gains.items()
    )
    load = MachineLoad(load_average=(0.1, 0.2), steal_share=0.0, other_load_cores=0.25, exposed=())
    base = (row("ort-cpu", 40.0, 1.0, "reference"),)
    measured = {"results": results, "reference": base, "control": base, "load": load}
    return RemoteRace(target=ON_ORIN.name, pool="jetson", machine=THERE, **measured)


def all_races() -> tuple[RemoteRace, ...]:
    """Return one that was run, one without a worker and one that was lost."""
    absent = RemoteRace.absent(ABSENT, MODELS, "no worker of the work pool 'gpu' is alive")
    return raced(), absent, RemoteRace.failed(LOST, MODELS, "its worker was lost")


def one_machine() -> RunReport:
    """Return the report of a run whose races were all on its own machine."""
    return reported_runs.run(verdict="passed", reason="3x", winner="int8", environment={})


def several_machines() -> RunReport:
    """Return the report of a run that also raced on other machines."""
    report = one_machine()
    facts = RemoteFacts(races=all_races()).model_dump(mode="json")
    empty = {"cached": False, "seconds": 1.0, "peak_rss_bytes": 0, "checks": (), "artifacts": {}}
    entry = StageEntry(stage="remote", facts=facts, **empty)
    return report.replace(stages=(*report.stages, entry), environment={**report.environment, **HERE})

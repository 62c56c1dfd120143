"""Which nodes of a model each execution target takes, and where the others run, before anything runs."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pydantic import Field

from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.onnx_model.graph import all_nodes, read_untrusted_graph
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed
from gauntlet.targets import Target, default_targets

TIMEOUT_S = 120.0
MEMORY_BYTES = 8 << 30
DEFAULT_DOMAIN = ("", "ai.onnx")


class TargetSupport(Frozen):
    """What a target does with the nodes of a model. Exactly one of `nodes`, `refused` and `unknown` is set."""

    target: str
    nodes: int | None = Field(None, description="all of the graph as it is, where the target loads the model")
    elsewhere: dict[str, dict[str, int]] = Field(
        default_factory=dict, description="nodes that it does not take: where they run -> operator -> count"
    )
    refused: str | None = Field(None, description="why the target does not load the model")
    unknown: str | None = Field(None, description="why it is not known on this machine")
    source: str = Field("", description="the runtime that loaded the model here, or the list of operators")

    @property
    def nodes_elsewhere(self) -> int:
        """How many nodes the target does not take."""
        return sum(sum(operators.values()) for operators in self.elsewhere.values())


def onnx_targets() -> tuple[Target, ...]:
    """Return one default target of each kind that runs ONNX models."""
    targets = [target for target in default_targets() if not target.model_suffixes]
    kinds = {target.kind: target for target in reversed(targets)}
    return tuple(target for target in targets if kinds[target.kind] is target)


def check_targets(model: Path, targets: Sequence[Target], timeout_s: float = TIMEOUT_S) -> tuple[TargetSupport, ...]:
    """Return what each target does with the model; a target that can run here loads it in a process of its own.

    Raises:
        StageError: when the file is not an ONNX model, or cannot be read within the limits.
    """
    try:
        counted = run_in_subprocess(count_operators, model, timeout_s=timeout_s, memory_bytes=MEMORY_BYTES).value
    except SubprocessFailed as error:
        raise StageError(f"{model.name}: reading the model failed: {error}") from error
    with ThreadPoolExecutor(usable_threads()) as pool:
        return tuple(pool.map(partial(_check, model, counted, timeout_s), targets))


def count_operators(model: Path) -> dict[str, int]:
    """Return how many nodes there are of each operator, those of branches included; `domain::name` but for ONNX's."""
    nodes = all_nodes(read_untrusted_graph(model).graph)
    names = (n.op_type if n.domain in DEFAULT_DOMAIN else f"{n.domain}::{n.op_type}" for n in nodes)
    return dict(Counter(names))


def _check(model: Path, counted: dict[str, int], timeout_s: float, target: Target) -> TargetSupport:
    if target.model_suffixes:
        why = f"it runs its framework's own file ({', '.join(target.model_suffixes)}), not ONNX"
        return TargetSupport(target=target.name, refused=why)
    why_not_here = target.unavailable()
    if why_not_here is None:
        return _ask(model, target, timeout_s)
    known = target.documented_operators
    if known is None:
        return TargetSupport(target=target.name, unknown=why_not_here)
    missing = {name: count for name, count in counted.items() if name not in known.operators and name != "Constant"}
    if missing and target.fallback is None:
        return TargetSupport(target=target.name, refused=f"it does not take {', '.join(missing)}", source=known.source)
    elsewhere = {str(target.fallback): missing} if missing else {}
    return TargetSupport(target=target.name, nodes=sum(counted.values()), elsewhere=elsewhere, source=known.source)


def _ask(model: Path, target: Target, timeout_s: float) -> TargetSupport:
    """Let the target's worker load the model."""
    request = {"do": "check_operators", "model": str(model.resolve()), "options": target.options()}
    try:
        with WorkerClient(target.command()) as worker:
            reply = worker.request(request, timeout_s)
    except WorkerFailed as error:
        return TargetSupport(target=target.name, unknown=one_line(error))
    if not reply:
        return TargetSupport(target=target.name, unknown="its runtime does not say it; race it with gauntlet bench")
    refused = reply["refused"]
    return TargetSupport(
        target=target.name,
        nodes=None if refused else reply["nodes"],
        elsewhere=reply["elsewhere"],
        refused=one_line(refused) if refused else None,
        source=reply["runtime"],
    )

"""What can be said of a race before it starts."""

from typing import Any, Self, cast

from pydantic import Field, PositiveInt, field_validator, model_validator

from tasks.benchmark.certainty import MOST_ROUNDS, RESOLUTION
from tasks.benchmark.sessions import Session, described
from tasks.frozen import Frozen
from tasks.runtime.threads import usable_threads
from tasks.targets import USUAL, Target
from tasks.targets.ort_cpu import OrtCpu


class BenchmarkConfig(Frozen):
    """How the candidates are timed. By default one that stays to the end runs for 0.9 s at each batch size."""

    batch_sizes: tuple[PositiveInt, ...] = Field(
        (1, 8), min_length=1, description="samples a call; each is measured, and of a fixed batch only that one"
    )
    rounds: int = Field(16, ge=6, le=MOST_ROUNDS, description="6 is the least that gives a 95 % interval")
    block_ms: float = Field(50, gt=0, description="how long a candidate runs at one batch size in one round")
    min_calls: int = Field(3, ge=1, description="calls in a block, however long they take")
    threads: int | None = Field(None, ge=1, description="of each session; by default, all that the process may use")
    timeout_s: float = Field(120, gt=0, description="a candidate that gives no answer for this long is out")
    resolution: float = Field(
        RESOLUTION,
        ge=0,
        lt=1,
        description="a smaller difference is never called: two processes of one file differ so much",
    )
    early_drop: bool = Field(
        True,
        description="race on without a candidate, at a batch size, that is proven slower than the leading one, and "
        "without a session of a file that gains nothing on its usual one",
    )
    targets: tuple[Target, ...] = Field(
        (OrtCpu(),),
        min_length=1,
        description="names from `gauntlet targets`, or kinds with options; the first is ort-cpu, which decides alone "
        "unless `also_ship_on` says otherwise",
    )
    also_ship_on: tuple[str, ...] = Field(
        (),
        description="names of further `targets` on which the winner may be shipped: all candidates race there as well, "
        "each after its accuracy was proven there too",
    )
    sessions: tuple[OrtCpu, ...] = Field(
        (),
        description="further options of the first target's session, raced with every candidate: {spinning: false} ...; "
        "the first batch size decides between them",
    )
    profile: bool = Field(True, description="profile the fastest candidate and the reference after the race")
    max_aa_deviation: float = Field(
        0.05, gt=0, description="how far the FP32 model may be from itself before the machine is called too noisy"
    )
    seed: int = Field(0, ge=0, description="of the order in the rounds")

    @field_validator("batch_sizes")
    @classmethod
    def _each_once(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) < len(sizes):  # one round would count as two, and the intervals would be too narrow
            raise ValueError("name each batch size once")
        return sizes

    @field_validator("targets", mode="before")
    @classmethod
    def _by_name(cls, targets: Any) -> Any:
        known = {target.name: target for target in USUAL}
        if not isinstance(targets, list | tuple):
            return targets
        strangers = [name for name in targets if isinstance(name, str) and name not in known]
        if strangers:
            raise ValueError(f"{strangers[0]!r} is no target; there are {', '.join(known)}")
        return tuple(known[target] if isinstance(target, str) else target for target in targets)

    @field_validator("targets")
    @classmethod
    def _decided_on_the_cpu(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if targets[0].kind != "ort-cpu":
            raise ValueError("the first target is ort-cpu: every other is compared with FP32 there")
        if len({target.name for target in targets}) < len(targets):
            raise ValueError("name each target once")
        return targets

    @field_validator("sessions", mode="before")
    @classmethod
    def _of_the_processor(cls, sessions: Any) -> Any:
        plain = isinstance(sessions, list | tuple)
        return [{"kind": "ort-cpu", **one} if isinstance(one, dict) else one for one in sessions] if plain else sessions

    @model_validator(mode="after")
    def _different_sessions(self) -> Self:
        names = [self.targets[0].name, *(session.name for session in self.sessions)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"sessions: {twice} is there twice, or is the first target; name each once")
        if any(session.env for session in self.sessions):
            raise ValueError("sessions: all run in this environment; a session in another one is a further target")
        return self

    @model_validator(mode="after")
    def _shipped_on_targets(self) -> Self:
        further = {target.name: target for target in self.targets[1:]}
        for name in self.also_ship_on:
            if name not in further:
                told = ", ".join(further) or "none so far: put it behind ort-cpu"
                raise ValueError(f"also_ship_on: {name!r} is none of the further benchmark.targets ({told})")
            if further[name].sources:
                raise ValueError(f"also_ship_on: {name} runs no ONNX file, so none can be shipped on it")
        return self

    @property
    def usual_threads(self) -> int:
        """Threads of a session that has no number of its own."""
        return self.threads or usable_threads()

    @property
    def all_sessions(self) -> tuple[OrtCpu, ...]:
        """The first target, and the further sessions."""
        return (cast(OrtCpu, self.targets[0]), *self.sessions)

    def place(self, name: str) -> Target:
        """Return a target, or a session of the first one, by its name."""
        return next(target for target in (*self.targets, *self.sessions) if target.name == name)

    def described(self) -> tuple[Session, ...]:
        """Return the sessions as they will be on this machine.

        Raises:
            ConfigError: when one asks for more threads than there are, or is another one under a second name.
        """
        return described(self.all_sessions, self.usual_threads, usable_threads())

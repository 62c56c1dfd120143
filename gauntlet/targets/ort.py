"""Targets of ONNX Runtime: their base class, and its own kernels on the processor."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import JsonObject
from gauntlet.runtime.session import CONFIG_ENTRIES, LEVELS, Level
from gauntlet.targets.base import BaseTarget

MODEL = "{model}"
"""In a provider option, the worker replaces this by a name unique to the model, and creates the folder."""


class OrtTarget(BaseTarget):
    """A session with one execution provider; nodes that it does not support run on the CPU, and are counted."""

    env: str | None = Field(None, description="Python environment: name for `gauntlet targets install`, or folder")
    engine: ClassVar[str] = "gauntlet.runtime.engines.ort"
    may_fork: ClassVar[bool] = True
    fallback: ClassVar[str | None] = "CPUExecutionProvider"
    provider: ClassVar[str]
    device: ClassVar[str | None] = None
    """Device that holds inputs and outputs during timing, if not the CPU."""

    def provider_options(self) -> dict[str, str]:
        """Return the provider's own options."""
        return {}

    def engine_options(self) -> JsonObject:
        """Return the provider, its options and the device of the tensors."""
        options: JsonObject = {"provider": self.provider, "provider_options": {**self.provider_options()}}
        return options | ({"device": self.device} if self.device else {})


NO_SPINNING = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}


class OrtCpu(OrtTarget):
    """The CPU provider, with the options of a session."""

    kind: Literal["ort-cpu"] = "ort-cpu"
    level: Level = Field("all", description="graph optimization; up to `extended`, tensors keep the model's layout")
    threads: int | None = Field(None, ge=1, description="of the session; by default, those of the benchmark")
    spinning: bool = Field(True, description="busy waiting, which is faster on free cores and slower on shared ones")
    arena: bool = Field(True, description="keep memory between calls")
    memory_pattern: bool = Field(True, description="plan memory ahead for inputs of a known shape")
    inter_op_threads: int | None = Field(
        None, ge=1, description="run branches of the graph in parallel, on so many threads of their own"
    )
    config_entries: dict[str, str] = Field(
        default_factory=dict, description="further entries of ONNX Runtime's session configuration, by key"
    )
    provider: ClassVar[str] = "CPUExecutionProvider"
    fallback: ClassVar[str | None] = None
    named_entries: ClassVar[str] = "config_entries"
    bundled_entries: ClassVar[frozenset[str]] = frozenset(CONFIG_ENTRIES)
    named_if_changed: ClassVar[dict[str, str]] = {"level": "{}", "threads": "{}t"}
    named_if_changed |= {"spinning": "nospin", "arena": "noarena"}
    named_if_changed |= {"memory_pattern": "nopattern", "inter_op_threads": "{}branches"}

    @model_validator(mode="after")
    def _branches_need_threads(self) -> Self:
        if self.inter_op_threads and self.threads == 1:
            raise ValueError("inter_op_threads: branches need at least two threads, got threads: 1")
        return self

    def settings(self) -> dict[str, str]:
        """Return the entries of the session's configuration."""
        return ({} if self.spinning else {**NO_SPINNING}) | self.config_entries

    def engine_options(self) -> JsonObject:
        """Return also the session's options."""
        options: JsonObject = {"level": self.level, "arena": self.arena, "memory_pattern": self.memory_pattern}
        options |= {"threads": self.threads} if self.threads else {}
        options |= {"inter_op_threads": self.inter_op_threads} if self.inter_op_threads else {}
        return super().engine_options() | options | {"settings": {**self.settings()}}

    def session_options(self, threads: int) -> dict[str, str | int | bool]:
        """Return the attributes of ONNX Runtime's `SessionOptions`, with a default number of threads."""
        threads = self.threads or threads
        options: dict[str, str | int | bool] = {
            "graph_optimization_level": LEVELS[self.level].name,
            "intra_op_num_threads": threads,
            "enable_cpu_mem_arena": self.arena,
        }
        options |= {} if self.memory_pattern else {"enable_mem_pattern": False}
        if self.inter_op_threads:
            options |= {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": self.inter_op_threads}
        return options | self.settings()

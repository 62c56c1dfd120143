"""ONNX Runtime's own kernels on the processor."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import JsonObject
from gauntlet.runtime.session import LEVELS, Level
from gauntlet.targets.ort import OrtTarget

NO_SPINNING = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}


class OrtCpu(OrtTarget):
    """The CPU provider, with the options of a session."""

    kind: Literal["ort-cpu"] = "ort-cpu"
    level: Level = Field("all", description="graph optimization; up to `extended`, tensors keep the model's layout")
    threads: int | None = Field(None, ge=1, description="of the session; by default, those of the benchmark")
    spinning: bool = Field(True, description="busy waiting, which is faster on free cores and slower on shared ones")
    arena: bool = Field(True, description="keep memory between calls")
    parallel: bool = Field(False, description="run branches of the graph in parallel, on as many threads again")
    provider: ClassVar[str] = "CPUExecutionProvider"
    named_if_changed: ClassVar[dict[str, str]] = {"level": "{}", "threads": "{}t"}
    named_if_changed |= {"spinning": "nospin", "arena": "noarena", "parallel": "parallel"}

    @model_validator(mode="after")
    def _branches_need_threads(self) -> Self:
        if self.parallel and self.threads == 1:
            raise ValueError("parallel: branches need at least two threads, got threads: 1")
        return self

    def settings(self) -> dict[str, str]:
        """Return the entries of the session's configuration."""
        return {} if self.spinning else {**NO_SPINNING}

    def engine_options(self) -> JsonObject:
        """Return also the session's options."""
        options: JsonObject = {"level": self.level, "arena": self.arena, "parallel": self.parallel}
        options |= {"threads": self.threads} if self.threads else {}
        return super().engine_options() | options | {"settings": {**self.settings()}}

    def session_options(self, threads: int) -> dict[str, str | int | bool]:
        """Return the attributes of ONNX Runtime's `SessionOptions`, with a default number of threads."""
        threads = self.threads or threads
        options: dict[str, str | int | bool] = {
            "graph_optimization_level": LEVELS[self.level].name,
            "intra_op_num_threads": threads,
            "enable_cpu_mem_arena": self.arena,
        }
        options |= {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": threads} if self.parallel else {}
        return options | self.settings()

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
    level: Level = Field(
        "all", description="graph optimisation; up to `extended`, tensors stay in the model's own layout"
    )
    threads: int | None = Field(None, ge=1, description="of the session; by default, those of the benchmark")
    spinning: bool = Field(True, description="threads wait for work awake, which is faster alone and slower in company")
    arena: bool = Field(True, description="keep memory between calls")
    parallel: bool = Field(False, description="run branches of the graph side by side, on as many threads again")
    provider: ClassVar[str] = "CPUExecutionProvider"

    @model_validator(mode="after")
    def _branches_need_threads(self) -> Self:
        if self.parallel and self.threads == 1:
            raise ValueError("parallel: branches run side by side on two threads or more, and threads is 1")
        return self

    def name_suffix(self) -> tuple[str, ...]:
        """Return what differs from the runtime's defaults."""
        told = {
            self.level: self.level != "all",
            f"{self.threads}t": self.threads is not None,
            "nospin": not self.spinning,
            "noarena": not self.arena,
            "parallel": self.parallel,
        }
        return tuple(word for word, differs in told.items() if differs)

    def settings(self) -> dict[str, str]:
        """Return how threads wait."""
        return {} if self.spinning else {**NO_SPINNING}

    def engine_options(self) -> JsonObject:
        """Return the session's options, too."""
        told: JsonObject = {"level": self.level}
        told |= {"threads": self.threads} if self.threads else {}
        told |= {} if self.arena else {"arena": False}
        told |= {"parallel": True} if self.parallel else {}
        return super().engine_options() | told

    def session_options(self, threads: int) -> dict[str, str | int | bool]:
        """Return the names and values that somebody sets on ONNX Runtime's `SessionOptions` to get this session.

        Args:
            threads: of the benchmark, where this session has no number of its own.
        """
        threads = self.threads or threads
        found: dict[str, str | int | bool] = {
            "graph_optimization_level": LEVELS[self.level].name,
            "intra_op_num_threads": threads,
            "enable_cpu_mem_arena": self.arena,
        }
        found |= {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": threads} if self.parallel else {}
        return found | self.settings()

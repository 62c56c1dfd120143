"""Where independent work of a run is done: one after the other, or side by side by several workers."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen
from gauntlet.runtime.resources import usable_threads

EXTRA_PACKAGES = {"dask": {"prefect_dask": "dask"}, "ray": {"prefect_ray": "ray"}}
"""Kind -> the packages that it needs, and the extra that brings each."""


class RunnerConfig(Frozen):
    """What does the work of candidates. The main line, and every measurement, stays in the process of the run."""

    kind: Literal["threads", "processes", "dask", "ray"] = Field(
        "threads",
        description="threads and processes of the run itself; dask, ray: workers of a cluster, which must see the "
        "home under the same path",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="works at the same time; by default one thread, which is one after the other, or a process a core. "
        "A cluster with an address has its own",
    )
    address: str | None = Field(
        None,
        description="of a cluster that runs already: tcp://host:8786 for dask, ray://host:10001 for ray; by default, "
        "one is started on this machine for the run",
    )

    @property
    def is_serial(self) -> bool:
        """Whether all work is done one after the other, in the run's own thread."""
        return self.kind == "threads" and self.size == 1

    @property
    def size(self) -> int:
        """How many workers there are on this machine."""
        return self.workers or (1 if self.kind == "threads" else usable_threads())

    @property
    def packages(self) -> dict[str, str]:
        """The optional packages that the kind needs, with the extra that brings each."""
        return EXTRA_PACKAGES.get(self.kind, {})

    @model_validator(mode="after")
    def _address_fits(self) -> Self:
        if self.address is None:
            return self
        if self.workers is not None:
            raise ValueError("workers is for workers on this machine; the cluster at address has its own: remove one")
        if self.kind not in EXTRA_PACKAGES:
            raise ValueError(f"address is for kind dask or ray; {self.kind!r} are on this machine: remove it")
        if urlsplit(self.address).password:
            raise ValueError("address: a configuration is shown in reports, so it must not hold a password")
        return self

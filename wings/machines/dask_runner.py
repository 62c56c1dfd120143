"""Workers of a Dask cluster do the work of candidates."""

from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from configs.runner import RunnerConfig


class DaskRunner(RunnerConfig):
    """Workers of a Dask cluster, which must see the home under the same path."""

    kind: Literal["dask"] = "dask"
    address: str | None = Field(
        None, description="of a running cluster, such as tcp://host:8786; by default a local one"
    )

    packages: ClassVar[dict[str, str]] = {"prefect_dask": "dask"}

    def task_runner(self) -> Any:
        """Return Prefect's task runner."""
        from prefect_dask.task_runners import DaskTaskRunner

        local = {"n_workers": self.size, "threads_per_worker": 1, "dashboard_address": None}
        return DaskTaskRunner(address=self.address, cluster_kwargs=None if self.address else local)

    def size_of(self, started: Any) -> int:
        """Return how many works the cluster does at the same time; lines would all connect to it at once later."""
        return max(1, sum(map(int, started.client.nthreads().values())))

    @model_validator(mode="after")
    def _address_fits(self) -> Self:
        if self.address is None:
            return self
        if self.workers is not None:
            raise ValueError("workers is for workers on this machine; the cluster at address has its own: remove one")
        if urlsplit(self.address).password:
            raise ValueError("address: a configuration is shown in reports, so it must not hold a password")
        return self

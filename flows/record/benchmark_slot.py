"""Prefect's limit of one benchmark a host, for workers that share a host but not its file system."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

LEASE_S = 60


@contextmanager
def benchmark_slot() -> Iterator[None]:
    """Hold the host's one benchmark slot on the Prefect server, in runs that a deployment started.

    A run from the command line needs none: there the lock file suffices, and the kernel releases it when the process
    ends, whereas a slot stays taken until its lease expires.
    """
    if runtime.deployment.id is None:
        yield
        return
    name = f"gauntlet-benchmark-{socket.gethostname()}"
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    with concurrency(name, occupy=1, lease_duration=LEASE_S, strict=True):
        yield

"""Prefect's limit of one benchmark a host, for workers that share a host but not its file system."""

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from httpx import HTTPError
from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

log = logging.getLogger("gauntlet")

LEASE_S = 60


@contextmanager
def benchmark_slot() -> Iterator[None]:
    """Hold the host's one benchmark slot on the Prefect server, in runs that a deployment started.

    A run from the command line needs none: there the lock file suffices, and the kernel releases it when the process
    ends, whereas a slot stays taken until its lease expires. A server that cannot be reached holds no slots: the
    benchmark goes on without, because only the server knows whether a deployment started the run.
    """
    slot = ExitStack()
    try:
        if runtime.deployment.id is not None:
            slot.enter_context(_slot_of_host())
    except HTTPError as error:
        log.warning("the Prefect server cannot be reached (%s): the benchmark runs without its slot", error)
    try:
        yield
    finally:
        with suppress(HTTPError):
            slot.close()


@contextmanager
def _slot_of_host() -> Iterator[None]:
    """Hold the slot; a lease that cannot be renewed does not end the benchmark, whose A/A control shows the noise."""
    name = f"gauntlet-benchmark-{socket.gethostname()}"
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    with concurrency(name, occupy=1, lease_duration=LEASE_S, strict=True, raise_on_lease_renewal_failure=False):
        yield

"""The connection to an object store: what it is asked is repeated while the server is away, and errors name the fix."""

import logging
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from gauntlet.core.artifact import STORE_ADDRESS
from gauntlet.core.errors import StoreRefused, StoreUnavailable, one_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

log = logging.getLogger("gauntlet")

PATIENCE_S = 300.0
"""How long a server that does not respond is waited for."""
PAUSE_S = 1.0
ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
PERMANENT = (
    (r"NoSuchBucket|ContainerNotFound|bucket does not exist", "no such bucket. Fix: create it, or correct {0}"),
    (
        r"HTTP error: builder error",
        f"the address of the server is not allowed. Fix: https://, or {'=true or '.join(ALLOW_HTTP)}=true",
    ),
    (
        r"169\.254\.169\.254|metadata\.google|MissingCredentials|no credentials",
        "no credentials. Fix: set the provider's variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    (r"Received redirect|PermanentRedirect", "the bucket is in another region. Fix: set AWS_REGION"),
    (r"os error (13|30)\b", "nothing can be written there ({1}). Fix: allow this user to write into the folder"),
    (r"os error 28\b", "its disk is full. Fix: free space there, for example with gauntlet clean --shared"),
    (r"status code: 4(?!08|29)\d\d", "the server refused the request ({1})"),
)
"""Part of an error's text -> what is wrong; {0} is the variable with the address, {1} the text."""
FORBIDDEN = "no permission ({1}). Fix: allow these credentials to list, read, write and delete objects there"

_lost: set[str] = set()
"""Addresses that did not respond for as long as this process waits."""

Result = TypeVar("Result")


@lru_cache
def connect(address: str) -> "Client":
    """Return the client of an object store; it connects when it is first used.

    Raises:
        StoreRefused: when the environment lacks what the provider needs.
    """
    import obstore.store
    from obstore.exceptions import BaseError

    if address.startswith("memory:"):
        return obstore.store.MemoryStore()
    try:
        if address.startswith("file:"):
            return obstore.store.from_url(address, mkdir=True, automatic_cleanup=True)
        return obstore.store.from_url(
            address,
            # By default, a request may take 30 s in all: too little for a large model. One that stands still ends.
            client_options={
                "timeout": "24h",
                "connect_timeout": "5s",
                "read_timeout": "60s",
                "allow_http": any(os.environ.get(name, "").lower() == "true" for name in ALLOW_HTTP),
            },
            retry_config={"max_retries": 2},
        )
    except (BaseError, ValueError, OSError) as error:
        raise StoreRefused(f"{STORE_ADDRESS}={address}: {short_text(error)}") from error


def patiently(address: str, do: Callable[[], Result], patience_s: float | None = None) -> Result:
    """Return what a request returns, and repeat it while the server does not respond.

    By default for `PATIENCE_S`, but once only: a run that ends because the server is lost does not wait again.

    Raises:
        FileNotFoundError: when there is no such object.
        AlreadyExistsError: of obstore, when one was to be created that exists.
        StoreRefused: when it cannot succeed: no such bucket, no permission, no credentials.
        StoreUnavailable: when the server did not respond in time.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

    longest = 0.0 if address in _lost else PATIENCE_S
    limit_s = longest if patience_s is None else min(patience_s, longest)
    deadline, waits = time.monotonic() + limit_s, False
    while True:
        try:
            result = do()
        except AlreadyExistsError:
            raise
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StoreRefused(
                f"{STORE_ADDRESS}={address}: {FORBIDDEN.format(STORE_ADDRESS, short_text(error))}"
            ) from error
        except (BaseError, FileNotFoundError) as error:
            if fault := permanent_fault(error):
                raise StoreRefused(f"{STORE_ADDRESS}={address}: {fault}") from error
            if isinstance(error, FileNotFoundError):
                raise
            if time.monotonic() > deadline:
                if limit_s == PATIENCE_S:
                    _lost.add(address)
                raise StoreUnavailable(
                    f"{address} did not respond for {limit_s:g} s ({short_text(error)}). Fix: start the server or "
                    "correct its address, and run the same command again: it continues where this run stopped"
                ) from error
            if not waits:
                log.warning("%s does not respond (%s): waiting up to %g s", address, short_text(error), limit_s)
            waits = True
            time.sleep(PAUSE_S)
        else:
            _lost.discard(address)
            if waits:
                log.info("%s responds again", address)
            return result


def permanent_fault(error: Exception) -> str | None:
    """Return what is wrong where repeating a request cannot help."""
    text = str(error)
    for pattern, meaning in PERMANENT:
        if re.search(pattern, text) and not (isinstance(error, FileNotFoundError) and "status code" in pattern):
            return meaning.format(STORE_ADDRESS, short_text(error))
    return None


def short_text(error: Exception) -> str:
    """Return an error's first sentence, without the parameters of addresses, which may be signatures."""
    text = str(error).partition("Debug source")[0].partition("<?xml")[0]
    return one_line(re.sub(r"\?[^\s\"']+", "", text)).rstrip(": ")

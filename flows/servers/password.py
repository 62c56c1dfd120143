"""The password of a home's servers: whoever may call Prefect's may run commands as the user.

It has the form `name:password`, which Prefect calls an auth string. One that the environment names is used instead.
"""

import base64
import os
import secrets
import urllib.error
import urllib.request
from pathlib import Path

from flows.record.home import Home
from flows.record.locks import locked
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import ConfigError

CLIENT, SERVER = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
"""Environment variables that Prefect reads: its clients the first, its server the second."""


def password_file(home: Home) -> Path:
    """Return the file that holds the home's own password; only its user can read it."""
    return home.prefect / "auth"


def password(home: Home) -> str:
    """Return the password that the environment names, else the home's own, which is made where there is none."""
    if login := os.environ.get(CLIENT) or os.environ.get(SERVER):
        return login
    file = password_file(home)
    with locked(home.prefect / "auth.lock"):  # processes that start at once make one
        if not file.exists():
            write_atomically(file, f"gauntlet:{secrets.token_urlsafe(32)}\n", mode=0o600)
    return file.read_text(encoding="utf-8").strip()


def password_hint(home: Home) -> str:
    """Return a line that says where a person finds the password, without the password."""
    file = password_file(home)
    own = file.exists() and password(home) == file.read_text(encoding="utf-8").strip()
    return f"Password of both pages, as name:password: {f'cat {file}' if own else f'as in {CLIENT}'}"


def prefect_variables(home: Home, api: str) -> dict[str, str]:
    """Return the environment variables with which a process uses the home's server at an address."""
    return {"PREFECT_HOME": str(home.prefect), "PREFECT_API_URL": api, CLIENT: password(home)}


def mlflow_variables(home: Home, address: str) -> dict[str, str]:
    """Return the environment variables with which a process uses the MLflow server that `gauntlet up` starts."""
    name, _, secret = password(home).partition(":")
    return {"MLFLOW_TRACKING_URI": address, "MLFLOW_TRACKING_USERNAME": name, "MLFLOW_TRACKING_PASSWORD": secret}


def authorization() -> dict[str, str]:
    """Return the headers of a request to Prefect's API that this process sends by itself."""
    login = os.environ.get(CLIENT)
    return basic(login) if login else {}


def refusal(error: BaseException) -> ConfigError | None:
    """Return how to get in where an error is that a Prefect server refused this process; None for other errors."""
    from prefect.exceptions import PrefectHTTPStatusError

    if not isinstance(error, PrefectHTTPStatusError) or error.response.status_code != 401:
        return None
    where, place = error.request.url.join("/"), "for a home's server, to what the file prefect/auth of the home holds"
    return ConfigError(f"{where}: the Prefect server refuses this process. Fix: set {CLIENT}, {place}")


def basic(known: str) -> dict[str, str]:
    """Return the headers of a request with an account, as RFC 7617 says."""
    return {"Authorization": f"Basic {base64.b64encode(known.encode()).decode()}"}


def require_access(home: Home, api: str) -> None:
    """Raise `ConfigError` when the home's server, at an address, has another password."""
    request = urllib.request.Request(f"{api}/admin/version", headers=basic(password(home)))
    try:
        urllib.request.urlopen(request, timeout=10).close()  # an address that we noted ourselves
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise ConfigError(
                f"{api}: the Prefect server of {home.root} was started with another password. "
                f"Fix: set {CLIENT} as it was then, or unset it for the one in {password_file(home)}"
            ) from error
    except OSError:
        return  # slow, or gone: whoever uses it will tell

"""A real Azure Blob server (Microsoft's Azurite, from npm) on a free port, with one container."""

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import needs
from free_ports import free_port

AZURITE = "azurite@3.35.0"
CONTAINER = "models"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the account that every Azurite has; Microsoft publishes it."""
VERSION = "2021-08-06"


@contextmanager
def azure_server(folder: Path) -> Iterator[dict[str, str]]:
    """Install and start the server, and yield the environment of its clients; it is killed at the end."""
    npm = shutil.which("npm") or needs.missing("npm is not on the PATH")
    subprocess.run([npm, "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent", AZURITE], check=True)
    port = free_port()
    command = [folder / "node_modules/.bin/azurite-blob", "--blobPort", str(port), "--location", folder / "blobs"]
    with (folder / "server.log").open("ab") as output:
        server = subprocess.Popen([*command, "--disableTelemetry"], stdout=output, stderr=output)
    try:
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        while not _has_container(endpoint):
            assert server.poll() is None, (folder / "server.log").read_text()
            time.sleep(0.1)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_ENDPOINT": endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)  # pytest would keep it


def _has_container(endpoint: str) -> bool:
    """Make the container, signed as Azure documents for Shared Key; False until the server listens."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
    listed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + 12 * "\n" + listed + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    asked = urllib.request.Request(f"{endpoint}/{CONTAINER}?restype=container", method="PUT", headers=headers)
    try:
        urllib.request.urlopen(asked, timeout=60).close()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
    return True

"""One registered model in MLflow: its versions by the digest of their bundle, its aliases, and its ledger."""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING, cast

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException

from flows.record.home import Home
from flows.servers.local_servers import shares_mlflow
from flows.tracking.server import experiment_id, require_reachable, tracking_client, tracking_uri, upload_time
from gauntlet.bundle.bundle import MANIFEST
from gauntlet.core.errors import ConfigError, GateFailed, PipelineError, StageError, one_line, without_password
from wings.lifecycle.library.promotion.ledger import ALIASES, Alias, Aliases, digest_of

if TYPE_CHECKING:
    from wings.lifecycle.registry.origin import (
        Origin,  # loads what records runs, which reading a registry does not need
    )

DIGEST = "bundle.digest"
"""Tag of a version, and of the logged model that holds its files."""
HEAD = "gauntlet.ledger"
"""Tag of a registered model: digest of the ledger's last line."""
LINES = "gauntlet.ledger.run"
"""Tag of a registered model: the run of the experiment `PROMOTIONS` that has the ledger's lines, files by digest."""
HOLDER = "gauntlet.ledger.holder"
"""Tag of a registered model: the home that changes it now."""
PROMOTIONS = "promotions"
LEASE_S, SETTLE_S, LOOK_S = 60.0, 1.0, 0.5
"""After how long another home's change counts as interrupted; how long one that wants to change something waits for
others that found the model free at the same time; how often it looks."""
CANARY = "gauntlet.canary"
"""Tag of a registered model: digest of the bundle that answers a share of the champion's requests, and the share."""
ACCOUNT_VARIABLE, PASSWORD_VARIABLE = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
"""MLflow's own names, read by its client."""
ORDER: tuple[Alias, ...] = ("previous", "champion", "challenger")
"""In which aliases are set: the champion never lacks a way back."""
READY = "READY"
DENIED = ("PERMISSION_DENIED", "UNAUTHENTICATED")


class AccessError(ConfigError):
    """The server's own accounts do not allow what was asked of it."""


class RegistryError(StageError):
    """The registry cannot be reached, or does not respond as expected; nothing is known to be wrong with a model."""


class ModelRegistry:
    """A registered model, which need not exist yet. All errors of the server are `RegistryError`."""

    def __init__(self, home: Home, uri: str, name: str) -> None:
        self.home, self.uri, self.name = home, uri, name

    def state(self) -> Aliases:
        """Return where the aliases stand; `ConfigError` when one points to a version that is no bundle."""
        with self._server() as client:
            model = self._model(client)
            versions = {alias: str(version) for alias, version in model.aliases.items()} if model else {}
            known = [cast(Alias, alias) for alias in versions if alias in ALIASES]
            state = {}
            for alias in known:
                tags = client.get_model_version(self.name, versions[alias]).tags
                if DIGEST not in tags:
                    raise ConfigError(
                        f"{self.name}: version {versions[alias]}, the {alias}, was not registered by gauntlet promote. "
                        "Fix: choose another name with --name, or remove the alias in MLflow"
                    )
                state[alias] = str(tags[DIGEST])
            return state

    def head(self) -> str | None:
        """Return the digest of the ledger's last line, if there is one."""
        return self._tag(HEAD) or None

    def find(self, digest: str) -> str | None:
        """Return the version with this bundle, or None."""
        with self._server() as client:
            query = f"name = '{self.name}' AND tags.`{DIGEST}` = '{digest}'"
            return next((str(v.version) for v in client.search_model_versions(query) if str(v.status) == READY), None)

    def digest_of(self, version: str) -> str | None:
        """Return the digest of a version's bundle; None when the version does not exist or is none."""
        with self._server() as client:
            try:
                return client.get_model_version(self.name, version).tags.get(DIGEST)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise

    def line(self, digest: str) -> bytes:
        """Return a line of the ledger by its digest; `GateFailed` where its file was changed or removed."""
        with self._server() as client, TemporaryDirectory() as folder:
            run = client.get_registered_model(self.name).tags.get(LINES, "")
            try:
                line = Path(client.download_artifacts(run, f"{digest}.json", folder)).read_bytes()
            except (MlflowException, OSError) as error:
                raise self._lost(run, digest, one_line(error).rstrip(".")) from error
            if digest_of(line) != digest:
                raise self._lost(run, digest, "it was changed")
            return line

    def _lost(self, run: str, digest: str, why: str) -> GateFailed:
        return GateFailed(
            f"{self.name}: the ledger's line {digest[:12]} cannot be read from the run {run} of MLflow's experiment "
            f"{PROMOTIONS}: {why}. Fix: restore it, or copy the ledger's file from a home that has it"
        )

    def add_line(self, line: bytes) -> None:
        """Let a line be the ledger's last one."""
        digest = digest_of(line)
        with self._server() as client:
            run = client.get_registered_model(self.name).tags.get(LINES)
            if run is None:
                place = experiment_id(self.home, client, PROMOTIONS)
                about = {"mlflow.note.content": f"A file for each line. In their order: gauntlet history {self.name}"}
                run = client.create_run(place, tags=about, run_name=self.name).info.run_id
                client.set_terminated(run)
                client.set_registered_model_tag(self.name, LINES, run)
            client.log_text(run, line.decode(), f"{digest}.json")
            client.set_registered_model_tag(self.name, HEAD, digest)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other homes from changing the model meanwhile; this one's other processes are kept from it by a lock.

        A home that finds the model free writes its name, and has it if the name is still there when all who found it
        free have written theirs (Fischer's algorithm; L. Lamport, "A fast mutual exclusion algorithm", 1987).
        """
        self.create()
        if self.uri == self.home.mlflow_uri and not shares_mlflow(self.home):  # a store of this home alone
            yield
            return
        me = f"{gethostname()}:{self.home.root}"
        mine, seen, since = f"{me} {secrets.token_hex(8)}", "", monotonic()
        while (holder := self._tag(HOLDER)) != mine:
            if holder != seen:
                seen, since = holder, monotonic()
            if not holder or holder.rpartition(" ")[0] == me or monotonic() - since > LEASE_S:
                self._set_tag(HOLDER, mine)
                sleep(SETTLE_S)
            else:
                sleep(LOOK_S)
        try:
            yield
        finally:
            with suppress(RegistryError):  # the next home waits for `LEASE_S`
                self._set_tag(HOLDER, "")

    def create(self) -> None:
        """Make the registered model where it does not exist."""
        with self._server() as client:
            if self._model(client) is not None:
                return
            about = f"{self.name}, promoted by replay. What was promoted, and why: gauntlet history {self.name}"
            try:
                client.create_registered_model(self.name, description=about)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise

    def register(self, origin: "Origin") -> str:
        """Store the bundle's files as a logged model, make a version of it, and return the version."""
        bundle = origin.opened
        with self._server() as client, upload_time(bundle.folder / MANIFEST):
            model_uri, model_id = self._logged_model(client, origin)
            tags = {DIGEST: bundle.digest, **origin.tags()}
            version = client.create_model_version(
                self.name, model_uri, origin.mlflow_run, tags, description=origin.description(), model_id=model_id
            )
            return str(version.version)

    def point(self, aliases: Aliases, versions: dict[str, str]) -> None:
        """Let all aliases stand as given; `versions` are by digest."""
        with self._server() as client:
            model = self._model(client)
            now = {alias: str(version) for alias, version in model.aliases.items()} if model else {}
            for alias in ORDER:
                want = versions[aliases[alias]] if alias in aliases else None
                if want is None and alias in now:
                    client.delete_registered_model_alias(self.name, alias)
                elif want is not None and now.get(alias) != want:
                    client.set_registered_model_alias(self.name, alias, want)

    def canary(self) -> tuple[str, float] | None:
        """Return the digest of the canary's bundle, and the share of the requests that it answers; None without one."""
        digest, _, share = self._tag(CANARY).partition(" ")
        return (digest, float(share)) if share else None

    def set_canary(self, canary: tuple[str, float] | None) -> None:
        """Let a bundle answer a share of the requests, or end the canary that runs."""
        if canary != self.canary():
            self._set_tag(CANARY, f"{canary[0]} {canary[1]}" if canary else "")

    def _tag(self, key: str) -> str:
        """Return a tag of the registered model; empty without one."""
        with self._server() as client:
            model = self._model(client)
            return str(model.tags.get(key, "")) if model else ""

    def _set_tag(self, key: str, value: str) -> None:
        with self._server() as client:
            client.set_registered_model_tag(self.name, key, value)

    def tags(self, version: str) -> dict[str, str]:
        """Return the tags of a version."""
        with self._server() as client:
            return dict(client.get_model_version(self.name, version).tags)

    def note(self, version: str, tags: dict[str, str], files: Sequence[Path], folder: str) -> None:
        """Store files below a folder of the run that a version is of, where it has one; then set tags of the version.

        The tags come last: a version that has them has the files.
        """
        with self._server() as client:
            run = client.get_model_version(self.name, version).run_id
            for file in files if run else ():
                client.log_artifact(run, str(file), folder)
            for key, value in tags.items():
                client.set_model_version_tag(self.name, version, key, value)

    def download(self, version: str, folder: Path) -> Path:
        """Copy the files of a version to somewhere below a folder, and return where."""
        with self._server() as client:
            source = client.get_model_version_download_uri(self.name, version)
            folder.mkdir(parents=True)
            return Path(mlflow.artifacts.download_artifacts(artifact_uri=source, dst_path=str(folder)))

    def _logged_model(self, client: MlflowClient, origin: "Origin") -> tuple[str, str]:
        """Return the address and the id of the logged model; one that a kill left incomplete is not used."""
        bundle = origin.opened
        place = origin.experiment or experiment_id(self.home, client, bundle.contract.name)
        models = client.search_logged_models([place], f"tags.`{DIGEST}` = '{bundle.digest}'")
        ready = [model for model in models if str(model.status) == READY]
        if ready:
            return str(ready[0].model_uri), str(ready[0].model_id)
        model = client.create_logged_model(
            place, f"{bundle.contract.name}-bundle", origin.mlflow_run, {DIGEST: bundle.digest}, model_type="bundle"
        )
        client.log_model_artifacts(model.model_id, str(bundle.folder))
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        return str(model.model_uri), str(model.model_id)

    def _model(self, client: MlflowClient) -> RegisteredModel | None:
        try:
            return client.get_registered_model(self.name)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    @contextmanager
    def _server(self) -> Iterator[MlflowClient]:
        """Yield a client; MLflow's own look-ups use the same server."""
        try:
            require_reachable(self.uri)
            with tracking_uri(self.uri):
                yield tracking_client(self.home, self.uri)
        except PipelineError:
            raise
        except Exception as error:  # whatever is wrong with the server
            where = without_password(self.uri)
            if isinstance(error, MlflowException) and error.error_code in DENIED:
                account = os.environ.get(ACCOUNT_VARIABLE, "")
                raise AccessError(
                    f"{where} does not allow {f'the account {account}' if account else 'requests without an account'} "
                    f"to do this with the model {self.name}. Fix: set {ACCOUNT_VARIABLE} and {PASSWORD_VARIABLE} to an "
                    "account that may, or ask for EDIT permission on the registered model"
                ) from error
            raise RegistryError(
                f"the model registry at {where} did not respond as expected ({without_password(one_line(error))}). "
                "Fix: start or repair the server and run the same command again; it finishes what was begun"
            ) from error

r"""Give a person an account on an MLflow server that runs with the app `basic-auth`, and one of three roles.

    MLFLOW_TRACKING_URI=https://mlflow.example.org MLFLOW_TRACKING_USERNAME=admin MLFLOW_TRACKING_PASSWORD=... \
        python docker/accounts.py anna release

`read` sees everything, `train` also records runs, `release` also promotes and rolls back. The server must run
with `mlflow-accounts.ini` and MLFLOW_ENABLE_WORKSPACES. Asks for the new account's password, or takes it from
`ACCOUNT_PASSWORD`, which an existing account then gets, too.
"""

import argparse
import getpass
import os
import sys
from typing import Any

PERMISSIONS = {
    "read": (),
    "train": (("workspace", "USE"), ("experiment", "EDIT")),
    "release": (("workspace", "USE"), ("experiment", "EDIT"), ("registered_model", "EDIT")),
}
"""What each role may do with all experiments and models, besides reading; `USE` is to make new ones."""
WORKSPACE = "default"


def main() -> int:
    """Create the account, or give an existing one the role in place of another; return the exit code."""
    from mlflow.exceptions import MlflowException
    from mlflow.server import get_app_client

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("account")
    parser.add_argument("role", choices=PERMISSIONS)
    arguments = parser.parse_args()
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri.startswith("http"):
        parser.error("MLFLOW_TRACKING_URI must be the address of the server: http://... or https://...")
    client = get_app_client("basic-auth", tracking_uri=uri)
    try:
        password = os.environ.get("ACCOUNT_PASSWORD")
        if not _exists(client, arguments.account):
            client.create_user(arguments.account, password or getpass.getpass(f"Password of {arguments.account}: "))
        elif password:
            client.update_user_password(arguments.account, password)
        _set_role(client, arguments.account, arguments.role)
    except MlflowException as error:
        print(f"accounts: {uri}: {error.message}", file=sys.stderr)
        return 1
    print(f"{arguments.account}: {arguments.role}")
    return 0


def _exists(client: Any, account: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_user(account)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def _set_role(client: Any, account: str, wanted: str) -> None:
    roles = {role.name: role.id for role in client.list_roles(WORKSPACE)}
    if wanted not in roles:
        roles[wanted] = client.create_role(WORKSPACE, wanted).id
        for resource, permission in PERMISSIONS[wanted]:
            client.add_role_permission(roles[wanted], resource, "*", permission)
    held = {role.name for role in client.list_user_roles(account)}
    for name in (held & set(PERMISSIONS)) - {wanted}:
        client.unassign_role(account, roles[name])
    if wanted not in held:
        client.assign_role(account, roles[wanted])


if __name__ == "__main__":
    raise SystemExit(main())

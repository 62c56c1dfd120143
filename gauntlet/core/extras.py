"""The command that installs an extra, which depends on how this package was installed."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]
"""Of a checkout, and of the container image, which has no Makefile; of a wheel, the folder of packages."""
UP = "prefect.yaml"
"""What `gauntlet up` deploys from; a wheel does not have it."""
TARGETS = {"pipeline": "onnx"}
"""Extra -> the Makefile's target, where it has another name."""


def is_checkout() -> bool:
    """Return whether this is a checkout or the container image, with the deployments that `gauntlet up` starts."""
    return (PROJECT / UP).is_file()


def install_command(extra: str, project: Path = PROJECT) -> str:
    """Return the command that installs an extra here."""
    if (project / "Makefile").is_file():
        return f"make {TARGETS.get(extra, extra)}"
    if (project / "pyproject.toml").is_file():
        return f"docker compose build, with {extra} among the EXTRAS of docker/.env"
    return f"pip install 'onnx-gauntlet[{extra}]'"

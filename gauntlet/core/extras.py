"""How to get the packages of an extra; in a container there is no Makefile, and nothing can be installed."""


def with_make(extra: str) -> str:
    """Return how to install an extra in a checkout, and in a container."""
    return f"make {extra} {_in_a_container(extra)}"


def with_pip(extra: str) -> str:
    """Return how to install an extra with pip, and in a container."""
    return f"pip install 'onnx-gauntlet[{extra}]' {_in_a_container(extra)}"


def _in_a_container(extra: str) -> str:
    return f"(in a container: build the image again with {extra} among the EXTRAS of docker/.env)"

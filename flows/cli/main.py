"""The entry point of the command line; a command's module is imported only when the command is called."""

import argparse
import errno
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Callable, Sequence

from flows.cli.options import parser
from gauntlet.core.errors import ConfigError, PipelineError, StageError, install_command
from gauntlet.runtime.signals import Ended, signals_held_back

EXTRAS = {
    **dict.fromkeys(("prefect", "mlflow", "httpx", "requests", "sqlalchemy", "matplotlib", "sklearn"), "pipeline"),
    **dict.fromkeys(("faster_coco_eval", "onnxoptimizer", "onnxscript", "onnxsim", "onnxslim"), "pipeline"),
    **dict.fromkeys(("fastapi", "fastapi_offline", "prometheus_client", "starlette", "uvicorn"), "serving"),
    **dict.fromkeys(("httptools", "python_multipart", "uvloop"), "serving"),
    "skimage": "sklearn",
    "prefect_dask": "dask",
    "mcp": "assistants",
}
"""Module -> the extra that brings it; each framework knows its own."""
FULL = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "the disk is full. Fix: free space, for example with gauntlet clean"),
    errno.EFBIG: "it may not become as large as it has to. Fix: raise the limit of ulimit -f",
    errno.EMFILE: "too many files are open. Fix: raise the limit of ulimit -n",
}
"""Error of what has reached a limit -> the reason and the fix."""
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG)
"""Of another user's file, a read-only disk, a link where another user may have put it, and a name that is too long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options = parser().parse_args(words or ["--help"])
        with signals_held_back("the packages are being loaded; this takes seconds"):  # some turn it into an ImportError
            command: Callable[[argparse.Namespace], int] = pkgutil.resolve_name(options.command)
        return command(options)
    except (PipelineError, ModuleNotFoundError) as error:
        reason = error if isinstance(error, PipelineError) else missing_package(error)
        if reason is None:
            raise
        from gauntlet.reporting.text_format import printable  # no command without an error waits for pydantic

        print(printable(f"gauntlet: {reason}"), file=sys.stderr)  # noqa: T201
        return reason.exit_code
    except (KeyboardInterrupt, Ended) as signal:
        print("gauntlet: interrupted; run the same command again to continue", file=sys.stderr)  # noqa: T201
        return int(getattr(signal, "code", 130))
    except BrokenPipeError:  # the reader of our output has closed it
        return 0
    except OSError as error:
        first = first_of(error)
        if first.errno in FULL:
            what = f"{first.filename or 'output'}: {FULL[first.errno]}"
            print(f"gauntlet: {what}, and run the same command again", file=sys.stderr)  # noqa: T201
            return StageError.exit_code
        if first.errno not in FORBIDDEN or first.filename is None:
            raise
        fix = "Fix: name files that you may use, and set GAUNTLET_HOME to a folder that you may write"
        print(f"gauntlet: {first.filename}: {first.strerror}. {fix}", file=sys.stderr)  # noqa: T201
        return ConfigError.exit_code


def first_of(error: OSError) -> OSError:
    """Return the first error of a folder that was copied: `shutil` has the files' errors as text alone."""
    number = re.search(r"\[Errno (\d+)\]", str(error)) if isinstance(error, shutil.Error) else None
    return OSError(int(number[1]), os.strerror(int(number[1])), error.args[0][0][1]) if number else error


def missing_package(error: ModuleNotFoundError) -> ConfigError | None:
    """Return how to install the package that a module is of; None where no extra brings it."""
    extra = extras().get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return ConfigError(f"this needs {error.name}, which is not installed; install it with: {install_command(extra)}")


def extras() -> dict[str, str]:
    """Return which extra brings a module."""
    from gauntlet.frameworks.framework import frameworks

    return EXTRAS | {module: extra for framework in frameworks() for module, extra in framework.modules.items()}


if __name__ == "__main__":
    sys.exit(main())

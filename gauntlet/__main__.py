"""The command `gauntlet`, also as `python -m gauntlet`."""

import gc
import pkgutil
import sys

from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import require_own_packages
from gauntlet.runtime.signals import end_in_order

OBJECTS_OF_IMPORTS = 50_000
"""Between two looks for garbage, which are a quarter of the time of all imports after every 700 objects."""


def main() -> int:
    """Run the command line, unless a package of the same name would be imported in place of one of ours."""
    gc.set_threshold(OBJECTS_OF_IMPORTS)
    end_in_order()
    try:
        require_own_packages()
    except ConfigError as error:
        print(f"gauntlet: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return int(pkgutil.resolve_name("flows.cli.main:main")())


if __name__ == "__main__":
    sys.exit(main())

"""Which modules a statement loads in a new process."""

import os
import subprocess
import sys


def modules_after(statement: str, **environment: str) -> set[str]:
    """Return the names of all modules that are loaded after it, whatever it prints before."""
    code = f"import sys; {statement}; print('\\n', *sys.modules)"
    more = os.environ | environment
    done = subprocess.run([sys.executable, "-c", code], env=more, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())

"""How long PyTorch's threads spin, by default and where the user decided."""

import os
import subprocess
import sys

import pytest

ASK = "import flows, os; print(os.environ['OMP_WAIT_POLICY'], os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "PASSIVE 1000"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "PASSIVE None"),
        ({"GOMP_SPINCOUNT": "7"}, "PASSIVE 7"),
    ],
)
def test_threads_spin_for_a_moment_unless_the_user_decided(asked: dict[str, str], found: str) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, "-c", ASK], env=own | asked, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found

"""Two hundred damaged or hostile files: whatever they are, the answer is a diagnosis or one clear error."""

from pathlib import Path

import pytest
from fuzzing import check, check_many
from mutations import Mutation, mutations, sample

pytestmark = pytest.mark.usefixtures("apart")


def violent() -> list[Mutation]:
    """Return those that ask for terabytes or do not end."""
    return [one for one in mutations() if "absurd_intermediate" in one.name or "endless" in one.name]


def test_every_damaged_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path) -> None:
    """All but the violent ones share one child; whoever does not fit in there is checked alone."""
    outcomes = check_many([mutation for mutation in mutations() if mutation not in violent()], tmp_path)
    assert len(outcomes) == 180
    assert set(outcomes) == {"diagnosis", "error"}


@pytest.mark.slow
def test_file_that_ends_the_child_of_many_is_checked_alone(tmp_path: Path) -> None:
    first, last = sample(2)
    endless = next(mutation for mutation in violent() if "endless-13" in mutation.name)
    before, alone, after = check_many([first, endless, last], tmp_path, timeout_s=2)
    assert (before, after) == ("error", "diagnosis")
    assert alone in ("diagnosis", "error")


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", {m.content: m for m in violent()}.values(), ids=lambda m: m.name)
def test_violent_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path, mutation: Mutation) -> None:
    check(mutation, tmp_path)

"""Where candidates are worked on: what is allowed, and the default."""

import pytest

from configs.loader import load
from gauntlet.core.errors import ConfigError


def test_default_is_one_after_the_other() -> None:
    assert load("digits-small-cnn").runner.is_serial
    assert not load("digits-small-cnn", ("runner.workers=2",)).runner.is_serial
    assert not load("digits-small-cnn", ("runner={kind: processes, workers: 1}",)).runner.is_serial


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("runner.kind=cluster", "allowed: 'threads', 'processes'"),
        ("runner.workers=0", "greater than or equal to 1"),
        ("runner={kind: threads, address: 'tcp://h:1'}", "address: unknown key"),
    ],
)
def test_wrong_runner_is_one_clear_error(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match="runner") as raised:
        load("digits-small-cnn", (setting,))
    assert message in str(raised.value)

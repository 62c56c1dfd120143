"""Where candidates are worked on: what is allowed, and the default."""

import pytest

from configs.loader import load
from configs.required_packages import needed_packages
from gauntlet.core.errors import ConfigError


def test_default_is_one_after_the_other() -> None:
    assert load("digits-small-cnn").runner.is_serial
    assert not load("digits-small-cnn", ("runner.workers=2",)).runner.is_serial
    assert not load("digits-small-cnn", ("runner={kind: processes, workers: 1}",)).runner.is_serial


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("runner.kind=cluster", "'threads', 'processes', 'dask' or 'ray'"),
        ("runner.workers=0", "greater than or equal to 1"),
        ("runner={kind: threads, address: 'tcp://h:1'}", "address is for kind dask or ray"),
        ("runner={kind: dask, address: 'tcp://h:1', workers: 2}", "the cluster at address has its own"),
        ("runner={kind: dask, address: 'tcp://me:secret@h:1'}", "must not hold a password"),
    ],
)
def test_wrong_runner_is_one_clear_error(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match="runner") as raised:
        load("digits-small-cnn", (setting,))
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("kind", "package"), [("dask", "prefect_dask"), ("ray", "prefect_ray")])
def test_cluster_needs_its_extra(kind: str, package: str) -> None:
    config = load("digits-small-cnn", (f"runner.kind={kind}",))
    assert needed_packages(config)[package] == (f"runner.kind '{kind}'", kind)
    assert package not in needed_packages(load("digits-small-cnn"))

"""Candidates on a Dask cluster: the same report, and settings that cannot be."""

from collections.abc import Iterator
from contextlib import contextmanager

import needs
import pytest
import yaml
from fake_runs import Seam, require_same_record

from configs.loader import load
from configs.required_packages import needed_packages
from configs.schema import PipelineConfig
from flows import side_by_side
from gauntlet.core.errors import ConfigError
from gauntlet.runtime.resources import usable_threads
from wings.machines.dask_runner import DaskRunner


@contextmanager
def dask_cluster(threads: int = 1) -> Iterator[str]:
    try:
        import distributed
        import prefect_dask  # noqa: F401
    except ImportError:
        needs.missing("Dask is not installed: pip install 'onnx-gauntlet[dask]'")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=threads, dashboard_address=None) as cluster:
        yield f"{{kind: dask, address: '{cluster.scheduler_address}'}}"


def test_cluster_that_runs_already_says_how_many_works_it_does_at_once() -> None:
    more_than_this_machine = usable_threads() + 1
    with dask_cluster(threads=more_than_this_machine) as setting:
        config = DaskRunner.model_validate(yaml.safe_load(setting))
        with side_by_side.side_by_side(config) as workers:
            assert workers.size == 2 * more_than_this_machine


@pytest.mark.slow
def test_record_is_the_same_as_without_workers(seam: Seam) -> None:
    with dask_cluster() as setting:
        require_same_record(seam, PipelineConfig.model_validate({"runner": yaml.safe_load(setting)}))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("runner={kind: dask, address: 'tcp://h:1', workers: 2}", "the cluster at address has its own"),
        ("runner={kind: dask, address: 'tcp://me:secret@h:1'}", "must not hold a password"),
    ],
)
def test_wrong_cluster_is_one_clear_error(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match="runner") as raised:
        load("digits-small-cnn", (setting,))
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_cluster_needs_its_extra() -> None:
    config = load("digits-small-cnn", ("runner.kind=dask",))
    assert needed_packages(config)["prefect_dask"] == ("runner.kind 'dask'", "dask")
    assert "prefect_dask" not in needed_packages(load("digits-small-cnn"))

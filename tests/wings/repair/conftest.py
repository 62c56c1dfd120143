"""A network whose INT8 form collapses, and how it is repaired."""

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Trained
from uneven_networks import LIMITS, RECIPE, Mend, Network, mended, quantized, uneven

from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from tasks.accuracy import AccuracyConfig
from wings.repair import RepairFacts


@pytest.fixture(scope="session")
def network(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Network:
    return quantized(trained, tmp_path_factory.mktemp("uneven"), uneven(trained.proto(), layer=1), RECIPE)


@pytest.fixture
def mend(network: Network, workspace: Callable[..., Workspace]) -> Mend:
    def run(limits: AccuracyConfig = LIMITS, **how: Any) -> Report[RepairFacts]:
        return mended(network, workspace(network.trained.store), limits, **how)

    return run


@pytest.fixture(scope="session")
def plain(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Report[RepairFacts]:
    """The repair with nothing set."""
    return mended(network, Workspace(network.trained.store, tmp_path_factory.mktemp("plain")), LIMITS)

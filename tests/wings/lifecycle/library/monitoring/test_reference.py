"""The winner's bundle has what requests are compared with."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from bundles import pack

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError
from gauntlet.core.workspace import Workspace
from wings.lifecycle.library.monitoring.reference import MonitoringReference

if TYPE_CHECKING:
    from conftest import Trained

MakeSpace = Callable[..., Workspace]


def test_reference_has_the_features_and_errors_of_the_test_split(trained: "Trained", workspace: MakeSpace) -> None:
    report = pack(workspace(trained.store), trained.model, trained.golden, {"reference_samples": 60}, test=trained.test)
    bundle = Bundle.open(trained.store.path(report.artifacts["bundle"]))
    reference = MonitoringReference.load(bundle)
    assert reference.names == ("brightness", "contrast", "sharpness", "colorfulness", "predicted class", "confidence")
    assert reference.features.shape == (60, 6)
    assert reference.error is not None and reference.error < 0.2
    assert ((reference.features[:, 0] > 0.1) & (reference.features[:, 0] < 0.6)).all()  # of pixels, not normalized
    assert reference.embedding is not None and reference.no_embedding == ""
    assert report.facts.embedding == reference.embedding.output.layer
    assert reference.embedding.usual.shape == (30,)
    assert reference.watched == (*reference.names, "embedding distance")


def test_bundle_without_a_reference_says_how_to_get_one(trained: "Trained", workspace: MakeSpace) -> None:
    config = {"reference_samples": 0}
    report = pack(workspace(trained.store), trained.model, trained.golden, config, test=trained.test)
    with pytest.raises(ConfigError, match=r"no monitoring.npz to compare with. Fix: .*package.reference_samples"):
        MonitoringReference.load(Bundle.open(trained.store.path(report.artifacts["bundle"])))

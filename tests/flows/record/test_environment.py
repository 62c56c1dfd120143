"""What a run notes of the machine and of what is installed."""

import numpy as np

from flows.record.environment import package_versions


def test_environment_holds_the_versions_of_the_packages_that_the_project_asks_for() -> None:
    found = package_versions()
    assert found["numpy"] == np.__version__
    assert {"onnx", "prefect", "scikit-learn", "pytest"} <= found.keys()
    assert all(found.values())

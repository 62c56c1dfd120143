"""Constants that an exporter left as inputs: the gate stops them, and the fix puts them back."""

from collections.abc import Callable
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.session import open_session
from tasks.structure import StructureConfig, structure
from wings.inspection.library.diagnosis import diagnose, fix
from wings.inspection.library.diagnosis.findings import CallerHints

from .conftest import Mend

start_tensorflow = pytest.importorskip("frameworks.keras.tensorflow_setup").start_tensorflow


@pytest.mark.slow
def test_keras_model_that_leaks_its_constants_passes_after_the_fix(tmp_path: Path) -> None:
    """The real thing: `keras.Model.export` to ONNX leaves two constants of a Normalization layer as inputs."""
    keras = start_tensorflow()
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            normalization := layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[0.5, 0.6, 0.7]),
            layers.Conv2D(4, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    x = np.random.default_rng(0).standard_normal((5, 32, 32, 3)).astype(np.float32)
    expected = model.predict(x, verbose=0)
    path, target = tmp_path / "keras.onnx", tmp_path / "fixed.onnx"
    model.export(path, format="onnx", verbose=False)
    found = diagnose(path)
    assert [finding.fault for finding in found.errors] == ["leaked_constant"]
    assert "Sub/y:0" in found.errors[0].fix  # the one whose value is needed
    leaked = [i.name for i in onnx.load(path).graph.input if "normalization" in i.name]
    values = {"Sub/y:0": normalization.mean, "Sqrt/x:0": normalization.variance}
    constants = {name: np.asarray(value) for name in leaked for end, value in values.items() if name.endswith(end)}
    np.savez(tmp_path / "constants.npz", **constants)
    evidence = CallerHints(constants=tmp_path / "constants.npz")
    mending = fix(path, target, evidence, diagnose(path, evidence))
    assert mending.output is not None
    assert diagnose(target).findings == ()
    session = open_session(target)
    (name,) = [i.name for i in session.get_inputs()]
    assert np.abs(session.run(None, {name: x})[0] - expected).max() < 1e-5


def test_structural_gate_stops_the_leak_names_the_fix_and_lets_the_fixed_model_pass(
    mend: Mend, keep_model: Callable[..., tuple[Workspace, Artifact]], tmp_path: Path
) -> None:
    def gate(proto: onnx.ModelProto) -> dict[str, str]:
        out, kept = keep_model(proto)
        failures = structure(StructureConfig(), out, model=kept).failures
        return {check.name: check.remedy for check in failures}

    np.savez(tmp_path / "constants.npz", **{"model/norm/mean": np.zeros((1, 3, 1, 1), np.float32)})
    proto = faulty_models.signed(faulty_models.leaked_constants())
    stopped = gate(proto)
    assert set(stopped) == {"structure.undeclared_inputs"}
    assert "gauntlet diagnose --fix" in stopped["structure.undeclared_inputs"]
    mending, _ = mend(proto, constants=tmp_path / "constants.npz")
    assert gate(onnx.load(mending.output or "")) == {}

"""What execution targets take of a model: asked of the runtimes here, or looked up where they document it."""

from pathlib import Path

import onnx
import onnx_text
import pytest
import transformer_models

from gauntlet.targets import by_name
from wings.inspection.library.diagnosis.target_support import check_targets, count_operators, onnx_targets
from wings.weight_only.recipe import WeightOnly


@pytest.fixture
def waves(tmp_path: Path) -> Path:
    """A model with two nodes that CoreML has no operator for, one of them in a branch."""
    text = """
        m (float[n,4] x, bool up) => (float[n,4] y) {
            s = Sin(x)
            y = If(up) <
                then_branch = t () => (float[n,4] a) { a = Relu(s) },
                else_branch = e () => (float[n,4] b) { b = Sin(s) }
            >
        }
    """
    onnx.save(onnx_text.model(text), tmp_path / "waves.onnx")
    return tmp_path / "waves.onnx"


def test_processor_takes_every_node_of_the_graph_as_it_is(waves: Path) -> None:
    [support] = check_targets(waves, [by_name("ort-cpu")])
    assert (support.nodes_elsewhere, support.refused, support.unknown) == (0, None, None)
    assert support.nodes >= 2
    assert support.source.startswith("onnxruntime ")


def test_operator_without_a_kernel_is_refused_by_name(tmp_path: Path) -> None:
    text = "m (float[1,8,8,4] x, float[4] g, float[4] b) => (float[1,8,8,4] y) "
    text += "{ y = com.microsoft.GroupNorm<groups = 2, activation = 0>(x, g, b) }"
    onnx.save(onnx_text.model(text, domains={"com.microsoft": 1}), tmp_path / "norm.onnx")
    [support] = check_targets(tmp_path / "norm.onnx", [by_name("ort-cpu")])
    assert support.nodes is None
    assert "GroupNorm" in support.refused


def test_device_elsewhere_leaves_undocumented_operators_to_the_processor(waves: Path) -> None:
    assert count_operators(waves) == {"Sin": 2, "If": 1, "Relu": 1}
    [support] = check_targets(waves, [by_name("ort-coreml")])
    assert support.elsewhere == {"CPUExecutionProvider": {"Sin": 2, "If": 1}}
    assert (support.nodes, support.nodes_elsewhere) == (4, 3)
    assert "CoreML" in support.source


def test_stored_weights_run_on_the_processor_where_a_device_does_not_document_them(tmp_path: Path) -> None:
    onnx.save(transformer_models.encoder(1), tmp_path / "encoder.onnx")
    WeightOnly(min_weights=1024).quantize(tmp_path / "encoder.onnx", None, None, tmp_path / "q.onnx")
    here, there = check_targets(tmp_path / "q.onnx", [by_name("ort-cpu"), by_name("ort-coreml")])
    assert (here.refused, here.nodes_elsewhere) == (None, 0)
    assert there.elsewhere["CPUExecutionProvider"]["com.microsoft::MatMulNBits"] == 6


def test_target_that_cannot_say_it_here_says_why(waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    openvino, torch = check_targets(waves, [by_name("openvino-f32"), by_name("torch-eager")])
    assert "gauntlet targets install openvino" in openvino.unknown
    assert torch.refused == "it runs its framework's own file (.pt2, .torchscript, .pt), not ONNX"


def test_default_targets_are_one_of_each_kind_that_runs_onnx() -> None:
    kinds = [target.kind for target in onnx_targets()]
    assert len(set(kinds)) == len(kinds)
    assert {"ort-cpu", "openvino", "ort-cuda"} <= set(kinds)
    assert "torch-eager" not in kinds

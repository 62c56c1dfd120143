"""From a tensor's name to the module of the source that made it."""

import pytest

from frameworks.torch.first_divergence import module_path


@pytest.mark.parametrize(
    ("tensor", "path"),
    [
        ("/conv1/Conv_output_0", "conv1"),
        ("/relu/Relu_output_0", "relu"),
        ("/layer1/layer1.0/conv1/Conv_output_0", "layer1.0.conv1"),
        ("/layer1/layer1.0/relu_1/Relu_output_0", "layer1.0.relu_1"),
        ("/layer2/layer2.0/downsample/downsample.0/Conv_output_0", "layer2.0.downsample.0"),
        ("/layer4/layer4.1/bn2/BatchNormalization_output_0", "layer4.1.bn2"),
        ("/0/Conv_output_0", "0"),
        ("/10/Relu_output_0", "10"),
        ("/features/features.3/block/block.1/Conv_output_0", "features.3.block.1"),
        ("/a/ab/Conv_output_0", "a.ab"),
        ("/fc/MatMul_output_12", "fc"),
        *(
            (name, None)
            for name in ("logits", "onnx::Conv_193", "", "/Relu_output_0", "conv1/Conv_output_0", "/conv1/x")
        ),
    ],
)
def test_module_path_is_the_sources_when_the_exporter_named_the_tensor(tensor: str, path: str | None) -> None:
    assert module_path(tensor) == path


@pytest.mark.slow
def test_module_path_finds_every_layer_when_resnet18_is_exported(tmp_path) -> None:
    import onnx
    import torch

    from frameworks.torch.architectures import NamedArchitecture
    from frameworks.torch.module_outputs import record_module_outputs

    network = NamedArchitecture(architecture="resnet18", channels=3, height=32, width=32, classes=10).build().eval()
    sample = torch.zeros(1, 3, 32, 32)
    torch.onnx.export(network, (sample,), tmp_path / "m.onnx", dynamo=False, opset_version=18)
    traced = record_module_outputs(network, [sample.numpy()])
    outputs = [o for node in onnx.load(tmp_path / "m.onnx").graph.node for o in node.output]
    found = {module_path(name) for name in outputs} & traced.keys()
    assert len([p for p in found if "conv" in p]) == 17
    assert {f"layer{n}.0.downsample.0" for n in (2, 3, 4)} <= found
    assert {f"layer{n}.{b}.relu_1" for n in (1, 2, 3, 4) for b in (0, 1)} <= found

"""Networks of PyTorch, saved as programs."""

from pathlib import Path
from typing import Any

from gauntlet.core.arrays import NamedArrays
from zoo_models.zoo_model import Outputs, ZooModel, floats, with_samples


def computed_by(network: Any) -> Outputs:
    """Return a network's outputs for samples, as arrays."""
    import torch

    def outputs(samples: NamedArrays) -> list[Any]:
        with torch.inference_mode():
            result = network(*(torch.from_numpy(array) for array in samples.values()))
        return [tensor.numpy() for tensor in torch.utils._pytree.tree_leaves(result)]

    return outputs


def program(
    folder: Path, network: Any, *shape: int, dtype: str = "float32", batch: Any = None, scripted: bool = False
) -> ZooModel:
    """Save a PyTorch network of one input `x` as a program with an open batch."""
    import torch

    network = network.eval().to(getattr(torch, dtype))
    example = torch.randn(2, *shape).to(getattr(torch, dtype))
    path = folder / ("model.pt" if scripted else "model.pt2")
    if scripted:
        torch.jit.trace(network, example).save(path)
    else:
        axes = ({0: batch or torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(network, (example,), dynamic_shapes=axes), path)

    def draw(count: int) -> NamedArrays:
        return {"x": floats(*shape)(count)["x"].astype(dtype)} if scripted else floats(*shape, name=name)(count)

    name = "x" if scripted else next(iter(torch.export.load(path).graph_signature.user_inputs))
    samples = draw if scripted or dtype == "float32" else lambda count: {name: draw(count)[name].astype(dtype)}
    return with_samples(path, samples, computed_by(network))


def torch_layers(folder: Path) -> ZooModel:
    """A perceptron whose batch is at most 16."""
    import torch
    from torch import nn

    return program(
        folder, nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3)), 8, batch=torch.export.Dim("b", max=16)
    )


def torch_half(folder: Path) -> ZooModel:
    """A convolutional network in float16."""
    from torch import nn

    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return program(folder, body, 3, 16, 16, dtype="float16")


def torch_double(folder: Path) -> ZooModel:
    """A traced perceptron in float64."""
    from torch import nn

    return program(
        folder, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), 8, dtype="float64", scripted=True
    )


def torch_transformer(folder: Path) -> ZooModel:
    """An encoder of two layers."""
    from torch import nn

    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return program(folder, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 6, 16)


def torch_recurrent(folder: Path) -> ZooModel:
    """The last output of an LSTM."""
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x)[0][:, -1])

    return program(folder, Recurrent(), 5, 8, scripted=True)


def torch_generator(folder: Path) -> ZooModel:
    """The generator of a GAN: images from noise."""
    from torch import nn

    up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1))
    return program(folder, nn.Sequential(nn.Unflatten(1, (16, 1, 1)), up, nn.Tanh()), 16)


def torch_nested(folder: Path) -> ZooModel:
    """Scores, and a tuple of two states."""
    from torch import nn

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            state = self.state(x)
            return self.head(state), (state, state.tanh())

    return program(folder, Nested(), 8)


def torchvision_mobilenet(folder: Path) -> ZooModel:
    """MobileNetV3."""
    from torchvision.models import mobilenet_v3_small

    return program(folder, mobilenet_v3_small(num_classes=5), 3, 48, 48)

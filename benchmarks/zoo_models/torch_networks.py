"""Networks of PyTorch, each of a few layers: its documentation's."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gauntlet.core.arrays import NamedArrays
from zoo_models.zoo_model import Outputs, ZooModel, floats, with_samples

LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Any], list[Any]]]] = {
    "conv1d": ((4, 12), lambda n: [n.Conv1d(4, 6, 3), n.MaxPool1d(2), n.Flatten(), n.Linear(30, 3)]),
    "conv3d": ((2, 6, 6, 6), lambda n: [n.Conv3d(2, 4, 3), n.AdaptiveAvgPool3d(1), n.Flatten(), n.Linear(4, 3)]),
    "depthwise": ((4, 8, 8), lambda n: [n.Conv2d(4, 4, 3, groups=4), n.Conv2d(4, 8, 1), n.ReLU6(), n.Flatten()]),
    "transposed1d": ((4, 6), lambda n: [n.ConvTranspose1d(4, 3, 4, 2, 1), n.Tanh()]),
    "pixel_shuffle": ((8, 5, 5), lambda n: [n.Conv2d(8, 12, 3, padding="same"), n.PixelShuffle(2)]),
    "upsample": ((3, 5, 5), lambda n: [n.Upsample(scale_factor=2, mode="bilinear"), n.Conv2d(3, 2, 3)]),
    "nearest": ((3, 5, 5), lambda n: [n.Upsample(scale_factor=2), n.ReflectionPad2d(1), n.Conv2d(3, 2, 3)]),
    "batch_norm": ((8,), lambda n: [n.Linear(8, 6), n.BatchNorm1d(6), n.PReLU(), n.Linear(6, 3)]),
    "group_norm": ((4, 8, 8), lambda n: [n.Conv2d(4, 8, 3), n.GroupNorm(4, 8), n.SiLU(), n.Flatten()]),
    "instance_norm": ((4, 8, 8), lambda n: [n.Conv2d(4, 8, 3), n.InstanceNorm2d(8, affine=True), n.Hardswish()]),
    "layer_norm": ((6, 8), lambda n: [n.LayerNorm(8), n.Linear(8, 8), n.RMSNorm(8), n.Mish(), n.Linear(8, 3)]),
    "pools": ((3, 9, 9), lambda n: [n.MaxPool2d(3, 2, 1), n.AvgPool2d(2, ceil_mode=True), n.LPPool2d(2, 2)]),
    "activations": ((8,), lambda n: [n.CELU(), n.SELU(), n.Softsign(), n.Softplus(), n.Hardtanh(), n.LogSigmoid()]),
    "shrinks": ((8,), lambda n: [n.Hardshrink(), n.Softshrink(), n.Tanhshrink(), n.GLU(), n.LogSoftmax(-1)]),
    "dropout": ((8,), lambda n: [n.Linear(8, 8), n.Dropout(0.5), n.Threshold(0.1, 0.0), n.Linear(8, 3)]),
    "auto_encoder": ((12,), lambda n: [n.Linear(12, 3), n.ELU(), n.Linear(3, 12), n.Sigmoid()]),
    "unfold": ((3, 8, 8), lambda n: [n.Unfold(2, stride=2), n.Flatten(), n.Linear(192, 3)]),
    "generator": (
        (16,),
        lambda n: [
            n.Unflatten(1, (16, 1, 1)),
            n.ConvTranspose2d(16, 8, 4),
            n.BatchNorm2d(8),
            n.ReLU(),
            n.ConvTranspose2d(8, 3, 4, 2, 1),
            n.Tanh(),
        ],
    ),
    "layers": ((8,), lambda n: [n.Linear(8, 32), n.GELU(), n.Linear(32, 3)]),
    "half": ((3, 16, 16), lambda n: [n.Conv2d(3, 8, 3), n.ReLU(), n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(8, 4)]),
    "double": ((8,), lambda n: [n.Linear(8, 16), n.Tanh(), n.Linear(16, 3)]),
    "transformer": (
        (6, 16),
        lambda n: [
            n.TransformerEncoder(n.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False)
        ],
    ),
    "channel_shuffle": ((4, 6, 6), lambda n: [n.ChannelShuffle(2), n.ZeroPad2d(1), n.Conv2d(4, 2, 3)]),
}
"""The shape of a sample, and a network's layers."""
SAVED: dict[str, dict[str, Any]] = {
    "layers": {"max_batch": 16},
    "half": {"dtype": "float16"},
    "double": {"dtype": "float64", "scripted": True},
}
"""How some of these are saved."""


def computed_by(network: Any) -> Outputs:
    """Return a network's outputs for samples, as arrays."""
    import torch

    def outputs(samples: NamedArrays) -> list[Any]:
        with torch.inference_mode():
            result = network(*(torch.from_numpy(array) for array in samples.values()))
        return [tensor.numpy() for tensor in torch.utils._pytree.tree_leaves(result)]

    return outputs


def program(
    folder: Path,
    network: Any,
    *shape: int,
    dtype: str = "float32",
    max_batch: int | None = None,
    scripted: bool = False,
) -> ZooModel:
    """Save a PyTorch network of one input `x` as a program with an open batch."""
    import torch

    network = network.eval().to(getattr(torch, dtype))
    example = torch.randn(2, *shape).to(getattr(torch, dtype))
    path = folder / ("model.pt" if scripted else "model.pt2")
    if scripted:
        torch.jit.trace(network, example).save(path)
    else:
        axes = ({0: torch.export.Dim("batch", max=max_batch)},)
        torch.export.save(torch.export.export(network, (example,), dynamic_shapes=axes), path)

    def draw(count: int) -> NamedArrays:
        return {"x": floats(*shape)(count)["x"].astype(dtype)} if scripted else floats(*shape, name=name)(count)

    name = "x" if scripted else next(iter(torch.export.load(path).graph_signature.user_inputs))
    samples = draw if scripted or dtype == "float32" else lambda count: {name: draw(count)[name].astype(dtype)}
    return with_samples(path, samples, computed_by(network))


def _layered(name: str, folder: Path) -> ZooModel:
    from torch import nn

    shape, make = LAYERS[name]
    return program(folder, nn.Sequential(*make(nn)), *shape, **SAVED.get(name, {}))


def _random_slope(folder: Path) -> ZooModel:
    from torch import nn

    made = program(folder, nn.Sequential(nn.Linear(8, 8), nn.RReLU(), nn.Linear(8, 3)), 8)
    return replace(made, refusal="it has no translation of the operator aten.rrelu")


def _decoder(folder: Path) -> ZooModel:
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
            self.body, self.head = nn.TransformerDecoder(layer, 2), nn.Linear(16, 5)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x, x, tgt_mask=self.mask, tgt_is_causal=True))

    return program(folder, Decoder(), 6, 16)


def _recurrent(kind: str, folder: Path) -> ZooModel:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = getattr(nn, kind)(5, 6, 2, batch_first=True, bidirectional=True), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x)[0].mean(1))

    return program(folder, Recurrent(), 7, 5)


def _last_output(folder: Path) -> ZooModel:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x)[0][:, -1])

    return program(folder, Recurrent(), 5, 8, scripted=True)


def _nested(folder: Path) -> ZooModel:
    from torch import nn

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            state = self.state(x)
            return self.head(state), (state, state.tanh())

    return program(folder, Nested(), 8)


def _attention(folder: Path) -> ZooModel:
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.norm = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16)

        def forward(self, x: Any) -> Any:
            return self.norm(x + self.attend(x, x, x, need_weights=False)[0])

    return program(folder, Attention(), 6, 16)


def _u_net(folder: Path) -> ZooModel:
    import torch
    from torch import nn

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine, self.coarse = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
            self.up, self.head = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 2, 1)

        def forward(self, x: Any) -> Any:
            fine = self.fine(x).relu()
            coarse = self.coarse(nn.functional.max_pool2d(fine, 2)).relu()
            return self.head(torch.cat([fine, self.up(coarse)], 1))

    return program(folder, UNet(), 3, 16, 16)


NETWORK = """from torch import nn
class Tied(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, width), nn.Linear(8, width)
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.outer.weight = self.inner.weight
    def forward(self, x):
        return self.head(self.norm(self.outer(x) + self.inner(x).relu()))
def make(width):
    return Tied(width)
"""
CONFIGURATION = """name: zoo
data: {{kind: arrays, path: {0}/samples.npz, layout: none}}
train: {{kind: torch-model, factory: "zoo_net:make", code_folder: {0}, arguments: {{width: 16}}, weights: {0}/{1}{2}}}
"""


def _factory(file: str, folder: Path) -> ZooModel:
    """A network by its code and a file of weights, of which two are tied."""
    import torch
    from safetensors.torch import save_model

    torch.manual_seed(0)
    module: dict[str, Any] = {}
    exec(NETWORK, module)
    network = module["make"](16).eval()
    (folder / "zoo_net.py").write_text(NETWORK)
    if file == "safetensors":
        save_model(network, str(folder / "weights.safetensors"))
    else:
        state = network.state_dict()
        torch.save({"state_dict": state} if file == "ckpt" else state, folder / f"weights.{file}")
    key = ", weights_key: state_dict" if file == "ckpt" else ""
    (folder / "zoo.yaml").write_text(CONFIGURATION.format(folder, f"weights.{file}", key))
    return with_samples(folder / "zoo.yaml", floats(8), computed_by(network), words=())


def _weights(folder: Path) -> ZooModel:
    made = _factory("pt", folder)
    return replace(made, source=folder / "weights.pt", refusal="weights alone need the code of their network")


def _brain_half(folder: Path) -> ZooModel:
    import torch
    from torch import nn

    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    example = torch.randn(2, 8, dtype=torch.bfloat16)
    torch.export.save(torch.export.export(network, (example,)), folder / "model.pt2")
    made = with_samples(folder / "model.pt2", floats(8), lambda _: [])
    return replace(made, refusal="bfloat16")


def networks() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the networks by name."""
    return (
        {f"torch_{name}": partial(_layered, name) for name in LAYERS}
        | {f"torch_{kind.lower()}": partial(_recurrent, kind) for kind in ("GRU", "LSTM", "RNN")}
        | {"torch_decoder": _decoder, "torch_attention": _attention, "torch_u_net": _u_net}
        | {"torch_recurrent": _last_output, "torch_nested": _nested}
        | {"torch_random_slope": _random_slope}
        | {f"torch_factory_{file}": partial(_factory, file) for file in ("pt", "ckpt", "safetensors")}
        | {"torch_weights": _weights, "torch_bfloat16": _brain_half}
    )

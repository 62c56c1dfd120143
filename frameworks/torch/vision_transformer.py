"""A small vision transformer (Dosovitskiy et al., ICLR 2021): torchvision's, with attention that tools recognize."""

import math
from typing import TYPE_CHECKING

from gauntlet.core.errors import StageError

if TYPE_CHECKING:
    import torch

PATCH = 8
"""Pixels of a patch's side."""
LAYERS, HEADS, WIDTH, HIDDEN_WIDTH = 4, 3, 192, 768
"""Those of DeiT-Tiny (Touvron et al., ICML 2021), with a third of its layers."""


def small_vit(channels: int, height: int, width: int, classes: int) -> "torch.nn.Module":
    """Return a network from images (n, channels, height, width) to scores (n, classes).

    Raises:
        StageError: for images that are not square, or whose side is no multiple of the patch's.
    """
    if height != width or height % PATCH:
        raise StageError(
            f"train.architecture: small-vit takes square images with sides that are a multiple of {PATCH} pixels, the "
            f"data has {height}x{width}. Fix: set data.image_size, or use another architecture"
        )
    from torch import nn
    from torchvision.models.vision_transformer import VisionTransformer

    network: nn.Module = VisionTransformer(
        image_size=height,
        patch_size=PATCH,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        mlp_dim=HIDDEN_WIDTH,
        num_classes=classes,
    )
    network.conv_proj = nn.Conv2d(channels, WIDTH, kernel_size=PATCH, stride=PATCH)
    for block in network.get_submodule("encoder.layers").children():
        block.self_attention = _self_attention()
    return network


def _self_attention() -> "torch.nn.Module":
    """Return self-attention (n, tokens, width) with a product each for queries, keys and values.

    PyTorch's own has one weight for all three, and its export is not in the form that ONNX Runtime fuses.
    """
    import torch
    from torch import nn

    size = WIDTH // HEADS

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, tokens: torch.Tensor, *_: torch.Tensor, **__: bool) -> tuple[torch.Tensor, None]:
            queries, keys, values = (self._heads(part(tokens)) for part in (self.query, self.key, self.value))
            shares = torch.softmax(queries @ keys.transpose(-2, -1) / math.sqrt(size), dim=-1)
            mixed = (shares @ values).transpose(1, 2)
            return self.output(mixed.reshape(mixed.shape[0], mixed.shape[1], WIDTH)), None

        def _heads(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens.reshape(tokens.shape[0], tokens.shape[1], HEADS, size).transpose(1, 2)

    return SelfAttention()

"""torchvision's small networks, trained on digits until they are as good as ResNet-18.

With torchvision's own momentum of 0.01, batch normalization knows nothing yet when so short a training ends: the
network learns, and answers as if it had not. So the momentum is 0.1 here, and the learning rate warms up.
"""

import os
from pathlib import Path

import numpy as np
from networks import CACHE, Network, made

from frameworks.torch.brought_network import TorchModel
from frameworks.torch.torchscript import TorchScript
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import require_labels

EPOCHS = 8
BATCH = 32
RATE = 2e-3
WARM_UP = 0.15
MOMENTUM = 0.1


def mobile_network(architecture: str) -> Network:
    """Return a network of torchvision's as ONNX; the first call trains it."""
    factory, weights = f"torchvision.models:{architecture}", weights_of(architecture)
    brought = TorchModel(factory=factory, arguments={"num_classes": 10}, weights=weights)
    return made(f"repair-{architecture}", Digits(), brought, TorchScript())


def weights_of(architecture: str) -> Path:
    """Return a network's weights as a state dict; the first call trains it."""
    path = CACHE / f"{architecture}.pt"
    if not path.is_file():
        _learn(architecture, path)
    return path


def _learn(architecture: str, target: Path) -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from torchvision.models import get_model

    torch.manual_seed(0)
    network, split = get_model(architecture, num_classes=10), Digits().load().splits["train"]
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = MOMENTUM
    images, labels = torch.from_numpy(split.take(slice(None))["input"]), torch.from_numpy(require_labels(split))
    steps = len(images) // BATCH
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * steps, pct_start=WARM_UP)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    order = np.random.default_rng(0)
    network.train()
    for _ in range(EPOCHS):
        for chosen in np.array_split(order.permutation(len(images))[: steps * BATCH], steps):
            optimizer.zero_grad()
            loss(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), target)

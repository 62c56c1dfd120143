"""Every classifier, segmenter and detector of torchvision, with random weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo_models.torch_networks import computed_by, program
from zoo_models.zoo_model import AMPLIFIED, ZooModel, floats, run_file, with_samples

CLASSIFIERS = {
    "alexnet": 64, "inception_v3": 75, "maxvit_t": 224, "mobilenet_v2": 64, "mobilenet_v3_small": 48, "googlenet": 64,
    "mobilenet_v3_large": 64, "squeezenet1_0": 64, "squeezenet1_1": 64, "resnext50_32x4d": 64, "resnext101_32x8d": 64,
    "resnext101_64x4d": 64, "wide_resnet50_2": 64, "wide_resnet101_2": 64, "vit_h_14": 28,
    **{f"convnext_{size}": 64 for size in ("tiny", "small", "base", "large")},
    **{f"densenet{depth}": 64 for depth in (121, 161, 169, 201)},
    **{f"efficientnet_{size}": 64 for size in (*(f"b{n}" for n in range(8)), "v2_s", "v2_m", "v2_l")},
    **{f"mnasnet{width}": 64 for width in ("0_5", "0_75", "1_0", "1_3")},
    **{f"regnet_x_{size}": 64 for size in ("400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")},
    **{f"regnet_y_{size}": 64 for size in ("400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf", "128gf")},
    **{f"resnet{depth}": 64 for depth in (18, 34, 50, 101, 152)},
    **{f"shufflenet_v2_x{width}": 64 for width in ("0_5", "1_0", "1_5", "2_0")},
    **{f"swin_{size}": 64 for size in ("t", "s", "b", "v2_t", "v2_s", "v2_b")},
    **{f"vgg{depth}{norm}": 32 for depth in (11, 13, 16, 19) for norm in ("", "_bn")},
    **{f"vit_{size}": 32 for size in ("b_16", "b_32", "l_16", "l_32")},
}  # fmt: skip
"""The height and width of their images in pixels."""
SEGMENTERS = (
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_resnet101", "fcn_resnet50", "fcn_resnet101",
    "lraspp_mobilenet_v3_large",
)  # fmt: skip
DETECTORS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
AUXILIARY = {"aux_logits": False, "init_weights": True}
ARGUMENTS: dict[str, dict[str, Any]] = {"googlenet": AUXILIARY, "inception_v3": AUXILIARY}
ARGUMENTS |= {name: {"image_size": side} for name, side in CLASSIFIERS.items() if name.startswith("vit")}


def _classifier(name: str, folder: Path) -> ZooModel:
    import torch
    from torchvision.models import get_model

    torch.manual_seed(0)
    size = CLASSIFIERS[name]
    network = get_model(name, num_classes=5, **ARGUMENTS.get(name, {}))
    for layer in network.modules() if name.startswith("efficientnet_v2") else ():
        if getattr(layer, "use_res_connect", False):  # a trained one changes little; others amplify rounding
            layer.block[-1][1].weight.data.fill_(0.2)
    _normalize(network, size)
    _show_all_layers(network)
    model = program(folder, network, 3, size, size)
    expected = computed_by(network.double())({name: array.astype(float) for name, array in model.unseen.items()})
    return replace(model, expected=[*expected], refusal=AMPLIFIED)  # deep ones round by half of what is allowed


def _normalize(network: Any, size: int) -> None:
    """Give batch norms the statistics of a batch: untrained ones make all outputs equal."""
    import torch

    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.from_numpy(floats(3, size, size)(8)["x"]))
    network.eval()


def _show_all_layers(network: Any) -> None:
    """Give weights that begin at zero, or nearly, values with which a fault in what they multiply is seen."""
    import torch

    for name, weight in network.named_parameters():
        if name.endswith("layer_scale") or name == "heads.head.weight":
            torch.nn.init.normal_(weight)


def _segmenter(name: str, folder: Path) -> ZooModel:
    import torch
    from torchvision.models import get_model

    torch.manual_seed(0)
    return program(folder, get_model(name, weights_backbone=None, num_classes=3), 3, 64, 64)


def _detector(name: str, folder: Path) -> ZooModel:
    """Return a detector of one image a call, and ONNX Runtime's outputs: tracing freezes the number of boxes."""
    import torch
    from torchvision.models import get_model

    torch.manual_seed(0)
    side = 64
    sizes = {} if name.startswith("ssd") else {"min_size": side, "max_size": side}
    sizes |= {"box_detections_per_img": 8} if name.startswith(("keypointrcnn", "maskrcnn")) else {}
    network = get_model(name, weights=None, weights_backbone=None, num_classes=5, **sizes).eval()
    if has_regions := hasattr(network, "roi_heads"):
        _normalize(network.backbone, 64)
    for part, weight in network.named_parameters():  # untrained scores are nearly ties, whose order is chance
        if part.endswith("weight") and any(head in part for head in ("cls_", "classification_head")):
            weight.data *= 4 if has_regions else 1 if name == "ssd300_vgg16" else 30  # whose scores would all be 1
    path, names = folder / "model.onnx", {"input_names": ["image"], "opset_version": 17}
    torch.onnx.export(network, ([torch.rand(3, side, side)],), path, dynamo=False, **names)
    draw = lambda count: {"image": np.random.default_rng(1).random((count, 3, side, side), np.float32)}  # noqa: E731
    made = with_samples(path, draw, lambda samples: run_file(path, samples), words=())
    tied = "close scores are only selected otherwise" if name.startswith("keypoint") else AMPLIFIED
    return replace(made, refusal=tied if has_regions or "retinanet" in name else "")


def vision() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the networks by name."""
    made = {_classifier: CLASSIFIERS, _segmenter: SEGMENTERS, _detector: DETECTORS}
    return {f"torchvision_{name}": partial(make, name) for make, names in made.items() for name in names}

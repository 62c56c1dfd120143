"""Small classifiers of images in any layout and channel order, with a signature, and images to ask them."""

import numpy as np
import onnx
import onnx_text

from gauntlet.core.signature import Preprocessing, Signature, TensorSpec

HEIGHT, WIDTH = 8, 6
MEAN, STD = (0.48, 0.45, 0.41), (0.23, 0.22, 0.26)


def how(channels: int = 3, **changes: object) -> Preprocessing:
    mean, std = (MEAN, STD) if channels == 3 else ((0.5,), (0.25,))
    given = {"height": HEIGHT, "width": WIDTH, "scale": 1 / 255, "mean": mean, "std": std, **changes}
    return Preprocessing.model_validate(given)


def image_model(
    preprocessing: Preprocessing,
    layout: str = "NCHW",
    *,
    batch: str | int = "n",
    input_name: str = "x",
    opset: int = 18,
) -> onnx.ModelProto:
    """Return a convolution over every channel with its own weights, so that no two of them can be confused."""
    channels = len(preprocessing.mean)
    shape = (channels, HEIGHT, WIDTH) if layout == "NCHW" else (HEIGHT, WIDTH, channels)
    axes = ", ".join(map(str, shape))
    first = f"t = Identity({input_name})" if layout == "NCHW" else f"t = Transpose<perm=[0, 3, 1, 2]>({input_name})"
    proto = onnx_text.model(
        f"""small (float[{batch}, {axes}] {input_name}) => (float[{batch}, 5] y)
        <float[4, {channels}, 3, 3] w, float[5, 4] v, float[5] b> {{
          {first}
          c = Conv<pads=[1, 1, 1, 1]>(t, w)
          r = Relu(c)
          p = GlobalAveragePool(r)
          f = Flatten(p)
          y = Gemm<transB=1>(f, v, b)
        }}""",
        opset=opset,
    )
    Signature(
        inputs=(TensorSpec(name=input_name, dtype="float32", shape=(batch, *shape)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(batch, 5)),),
        primary_output="y",
        layout=layout,
        preprocessing=preprocessing,
        labels=tuple("abcde"),
    ).write(proto)
    return proto


def images(count: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, channels), np.uint8)

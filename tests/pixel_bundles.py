"""A network that its callers feed with normalized images, and the same one that takes the images themselves."""

import io
from pathlib import Path

import numpy as np
import onnx
from bundles import pack
from image_models import HEIGHT, WIDTH, how, image_model, images
from PIL import Image

from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from gauntlet.images.preprocessing import preprocess_batch
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.preprocessing.library.preprocess import preprocess

SIZES = ((HEIGHT, WIDTH), (31, 17), (5, 40))


def png(height: int, width: int) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def pixel_bundles(root: Path) -> tuple[Path, Path]:
    """Make bundles of the same network twice: normalized by its callers, in BGR, and by its graph."""
    store = Store(root / "store")

    def space(name: str) -> Workspace:
        (root / name).mkdir()
        return Workspace(store, root / name)

    out, plain = space("given"), how(channel_order="BGR", resize="letterbox")
    path = out.folder / "model.onnx"
    onnx.save(image_model(plain), path)
    inputs = {"x": preprocess_batch(images(16), plain, "NCHW")}
    outputs = batched_inference(open_session(path), inputs).run(4)
    Golden({"real": GoldenCase(inputs, outputs)}, outputs).save(out.folder / "golden.npz")
    split = ArraySplit(inputs, np.arange(16) % 5).save(out.folder, "test")
    host = dict(
        zip(("model", "golden", "test"), map(out.store_file, (path, out.folder / "golden.npz", split)), strict=True)
    )
    graph = preprocess(Tolerances(samples=8), space("made"), **host).artifacts

    def packed(name: str, parts: dict[str, Artifact]) -> Path:
        report = pack(space(name), parts["model"], parts["golden"], test=parts["test"])
        assert not report.failures
        return store.path(report.artifacts["bundle"])

    return packed("host", host), packed("graph", graph)

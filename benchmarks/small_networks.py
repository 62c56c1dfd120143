"""What `gauntlet run` makes of small Keras networks, beside the INT8 file of TensorFlow's own converter: one race each.

    python benchmarks/small_networks.py [NAME ...] [--folder FOLDER] [--rounds 16] [--set K=VALUE] [--result FILE.json]

The five networks are of the kinds that run on small devices, learned here from digits that are stretched to their
inputs. Converter and product calibrate with the same samples; the product gets others for its gates, and chooses in one
command, with OpenVINO installed. Then the Keras network as FP32 in ONNX Runtime, the chosen file, and the converter's
file in TensorFlow Lite race at batch 1, float input to float output. Noise is that of the outputs against Keras', for
samples that none has seen.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peer_files import TIMEOUT_S, Row, outputs
from product_run import arguments, run_on_samples, winner_of
from results import Figure, Measured, conclude
from scipy.ndimage import zoom

from flows.record.home import Home
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.arrays import Array
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.rows import row
from gauntlet.race.table import run_race
from gauntlet.reporting.text_format import fixed, speedup
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets import OrtCpu

SPLITS = {"train": 1100, "validation": 128, "calibration": 128, "test": 256, "unseen": 185}
KERAS, CHOSEN, LITE = "Keras, FP32", "chosen", "TensorFlow Lite, INT8"
NEAR = 1.3
"""A network on which the other file is faster is near where it is no more than this times as fast."""


def residual(layers: Any) -> tuple[tuple[int, ...], Any, Any]:
    """Return the input's shape, inputs and outputs of a ResNet-8: three blocks of two convolutions."""
    first = layers.Input((32, 32, 3), name="image")
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(first)))
    for width, step in ((16, 1), (32, 2), (64, 2)):
        inner = layers.Conv2D(width, 3, step, padding="same", use_bias=False)(x)
        inner = layers.ReLU()(layers.BatchNormalization()(inner))
        inner = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(inner))
        x = layers.ReLU()(layers.Add()([inner, x if step == 1 else layers.Conv2D(width, 1, step)(x)]))
    return (32, 32, 3), first, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def separable(
    layers: Any, shape: tuple[int, ...], first: tuple[int, int], blocks: list[tuple[int, int]]
) -> tuple[tuple[int, ...], Any, Any]:
    """Return a network of depthwise and pointwise convolutions; `blocks` are widths and steps."""
    image = layers.Input(shape, name="image")
    x = layers.Conv2D(first[0], 3, first[1], padding="same", use_bias=False)(image)
    x = layers.ReLU(6)(layers.BatchNormalization()(x))
    for width, step in blocks:
        for layer in (layers.DepthwiseConv2D(3, step, padding="same", use_bias=False), layers.Conv2D(width, 1)):
            x = layers.ReLU(6)(layers.BatchNormalization()(layer(x)))
    return shape, image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def autoencoder(layers: Any) -> tuple[tuple[int, ...], Any, Any]:
    """Return a dense autoencoder of 640 values, with batch normalization after each layer."""
    first = layers.Input((640,), name="image")
    x = first
    for width in (128, 128, 128, 8, 128, 128, 128):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Dense(width)(x)))
    return (640,), first, layers.Dense(640)(x)


def streaming(layers: Any) -> tuple[tuple[int, ...], Any, Any]:
    """Return a wake word's network: separable convolutions over time."""
    first = layers.Input((30, 40), name="image")
    x = first
    for width in (32, 64, 64, 64):
        x = layers.ReLU()(layers.BatchNormalization()(layers.SeparableConv1D(width, 3, padding="same")(x)))
    return (30, 40), first, layers.Dense(10)(layers.GlobalAveragePooling1D()(x))


MOBILE = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
NETWORKS: dict[str, tuple[Callable[[Any], tuple[tuple[int, ...], Any, Any]], int]] = {
    "ResNet-8": (residual, 8),
    "Separable keyword network": (lambda layers: separable(layers, (49, 10, 1), (64, 2), [(64, 1)] * 4), 12),
    "MobileNetV1-0.25": (lambda layers: separable(layers, (96, 96, 3), (8, 2), MOBILE), 8),
    "Dense autoencoder": (autoencoder, 30),
    "Streaming wake word": (streaming, 12),
}
"""How each is built, and its epochs."""


class Compared(NamedTuple):
    """A network's files: their rows against Keras' network and against the converter's file, and noise in dB."""

    rows: dict[str, BenchmarkRow]
    chosen: str
    over_lite: BenchmarkRow
    noise_db: dict[str, float]


def stretched(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return all digits with a little noise, stretched to an input's shape, and their labels."""
    from sklearn.datasets import load_digits

    digits, random = load_digits(), np.random.default_rng(0)
    plane = (shape[0], 1) if len(shape) == 1 else shape[:2]
    images = digits.images / 16 if len(shape) > 1 else digits.images.reshape(-1, 64, 1) / 16
    images = zoom(images, (1, *(size / own for size, own in zip(plane, images.shape[1:], strict=True))), order=1)
    images = images + random.normal(0, 0.05, images.shape)
    images = np.repeat(images[..., None], shape[2], axis=-1) if len(shape) == 3 else images.reshape(-1, *shape)
    order = random.permutation(len(images))
    return images[order].astype(np.float32), digits.target[order]


def prepare(name: str, place: Path) -> Array:
    """Write the network, the converter's file, and the samples, a file a split; return Keras' unseen outputs."""
    keras = start_tensorflow()
    keras.utils.set_random_seed(0)
    build, epochs = NETWORKS[name]
    shape, first, last = build(keras.layers)
    model, (images, labels) = keras.Model(first, last), stretched(shape)
    starts = np.cumsum([0, *SPLITS.values()])
    parts = {split: slice(*starts[i : i + 2]) for i, split in enumerate(SPLITS)}
    rebuilds = len(shape) == 1
    loss = "mse" if rebuilds else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss)
    taught = images if rebuilds else labels
    model.fit(images[parts["train"]], taught[parts["train"]], 32, epochs, verbose=0)
    model.save(place / "network.keras")
    data = place / "samples"
    data.mkdir(exist_ok=True)
    for split in ("validation", "calibration", "test"):
        known = {} if rebuilds else {"labels": labels[parts[split]]}
        np.savez(data / f"{split}.npz", allow_pickle=False, image=images[parts[split]], **known)
    np.savez(place / "unseen.npz", allow_pickle=False, image=images[parts["unseen"]])
    (place / "network.tflite").write_bytes(converted(model, images[parts["calibration"]]))
    return np.asarray(model.predict(images[parts["unseen"]], verbose=0))


def converted(model: Any, calibration: Array) -> bytes:
    """Return TensorFlow's INT8 file of a Keras network, which takes and gives floats."""
    import tensorflow as tf

    def samples() -> Iterator[list[Array]]:
        yield from ([image[None]] for image in calibration)

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    return bytes(converter.convert())


def compared(name: str, place: Path, home: Home, rounds: int, changes: list[str]) -> Compared:
    """Let the product work on one network, race the files, and compare their outputs with Keras'."""
    expected, unseen = prepare(name, place), place / "unseen.npz"
    report, _ = run_on_samples(place / "network.keras", home, [f"name=small-{place.name}", *changes])
    fp32 = next(home.store.path(c.artifact) for c in report.candidates if c.parent is None and c.artifact)
    winner = winner_of(report, home)
    lite = Entry(place / "network.tflite", options={"engine": "lite_engine"}, target="tflite")
    entries = {KERAS: Row(file=fp32, target=OrtCpu()).entry(), CHOSEN: winner.entry(), LITE: lite}
    noise_db = {
        what: worst_noise_db([next(iter(outputs(entry, unseen, batch=1).values()))], [expected])
        for what, entry in entries.items()
    }
    race = run_race(entries, Plan((1,), rounds, 50, usable_threads(), TIMEOUT_S), KERAS, inputs=unseen)
    against = row(race.contenders[CHOSEN], race.contenders[LITE], 1, resolution=0)
    rows = {what: measured for what, [measured] in race.rows.items()}
    return Compared(rows, f"{report.winner} on {winner.target.name}", against, noise_db)


def result(networks: dict[str, Compared], rounds: int) -> Measured:
    """Return the result for all networks."""
    table = [
        (name, f"**{each.chosen}**" if what == CHOSEN else what, f"{1000 * measured.median_ms:.0f}",
         speedup(measured.speedup, measured.speedup_low, measured.speedup_high), fixed(each.noise_db[what], 1))
        for name, each in networks.items() for what, measured in each.rows.items()
    ]  # fmt: skip
    ahead = [each.over_lite.speedup_low > 1 for each in networks.values()]
    behind = [1 / each.over_lite.speedup for each in networks.values()]
    exact = [each.noise_db[CHOSEN] >= each.noise_db[LITE] for each in networks.values()]
    return Measured(
        claim="Small networks: no less exact than TensorFlow's own INT8 files",
        conditions=f"{rounds} rounds at batch 1, {usable_threads()} threads, float input to float output; signal to "
        "noise without the mean, of the worst slice of the output, against Keras",
        figures=(
            Figure.at_least("networks on which the chosen file is proven faster", sum(ahead), 2),
            Figure.at_least("networks on which it is no less exact", sum(exact), len(networks), goal="all"),
            Figure.at_most("their speed over the chosen file's, at most", round(max(behind), 2), NEAR, "x"),
        ),
        columns=("network", "file", "microseconds", "over Keras, FP32", "signal to noise, dB"),
        rows=table,
    )


def main() -> int:
    """Run, print, write; 1 when a goal is missed."""
    options, home = arguments(__doc__, NETWORKS, Path("small-networks"), rounds=16)
    networks = dict[str, Compared]()
    paths = (str(Path(__file__).parent.resolve()), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # where workers find the engine
    for name in options.names or NETWORKS:
        place = (options.folder / re.sub(r"[^a-z0-9]+", "-", name.lower())).resolve()
        place.mkdir(parents=True, exist_ok=True)
        networks[name] = compared(name, place, home, options.rounds, options.set)
        print(f"{name}: {networks[name].chosen}", flush=True)
    return conclude(result(networks, options.rounds), "peers", options.result)


if __name__ == "__main__":
    sys.exit(main())

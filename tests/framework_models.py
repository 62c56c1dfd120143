"""A small model in each form that frameworks save, as users bring them: `MADE[form](folder)` writes it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 4
SIZE = 8
JAX_CODE = """
import jax.numpy as jnp


def predict(parameters, image):
    hidden = jnp.maximum(image.reshape(image.shape[0], -1) @ parameters["dense"]["kernel"], 0)
    return {"scores": hidden @ parameters["head"], "hidden": hidden}


def broken(parameters, image):
    return "no array"
"""


@dataclass(frozen=True)
class Brought:
    """A model, and what `gauntlet run` must be told about it beside its path."""

    path: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: Path | None = None


def exported_program(folder: Path, batch: int | None = None) -> Brought:
    """A program of torch.export; with `batch`, for so many samples at once."""
    import torch

    axes = None if batch else {"image": {0: torch.export.Dim("batch")}}
    example = torch.randn(batch or 2, 3, SIZE, SIZE)
    program = torch.export.export(_network(), (example,), dynamic_shapes=axes)
    torch.export.save(program, folder / "net.pt2")
    return Brought(folder / "net.pt2")


def program_with_control_flow(folder: Path, form: str, batch: int | None) -> Brought:
    """A program of torch.export that keeps a loop, or a branch by its values; with `batch`, for so many samples."""
    import torch
    from torch._higher_order_ops import scan, while_loop

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            if form.startswith("cond"):
                return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x.sin(), (x,))
            if form == "while":
                step = lambda count, x: (count + 1, self.layer(x).tanh())  # noqa: E731
                return while_loop(lambda count, x: count < 3, step, (torch.tensor(0), x))[1]
            return scan(lambda h, y: ((h + self.layer(y)).tanh(), y + h), torch.zeros_like(x[:, 0]), x, dim=1)[1]

    axes = None if batch else ({0: torch.export.Dim("batch")},)
    program = torch.export.export(Network().eval(), (torch.randn(batch or 4, 5, 8),), dynamic_shapes=axes)
    torch.export.save(program, folder / "net.pt2")
    return Brought(folder / "net.pt2")


def torchscript(folder: Path) -> Brought:
    import torch

    torch.jit.script(_network()).save(folder / "net.pt")
    return Brought(folder / "net.pt", {"image": (3, SIZE, SIZE)})


def keras_file(folder: Path) -> Brought:
    _keras_network().save(folder / "net.keras")
    return Brought(folder / "net.keras")


def saved_model(folder: Path) -> Brought:
    _keras_network().export(folder / "net", verbose=False)
    return Brought(folder / "net")


def estimator(folder: Path) -> Brought:
    import skops.io
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = np.arange(60) % CLASSES
    samples = np.random.default_rng(0).standard_normal((60, 6)) + labels[:, None]
    skops.io.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(samples, labels), folder / "net.skops")
    return Brought(folder / "net.skops")


def jax_function(folder: Path) -> Brought:
    rng = np.random.default_rng(0)
    (folder / "jaxnets.py").write_text(JAX_CODE)
    arrays = {"dense/kernel": rng.standard_normal((3 * SIZE * SIZE, 16)), "head": rng.standard_normal((16, CLASSES))}
    np.savez(folder / "parameters.npz", **{name: array.astype(np.float32) for name, array in arrays.items()})
    function = folder / "jaxnets.py:predict"
    return Brought(function, {"image": (SIZE, SIZE, 3)}, folder / "parameters.npz")


MADE: dict[str, Callable[[Path], Brought]] = {
    "exported-program": exported_program,
    "torchscript": torchscript,
    "keras-model": keras_file,
    "saved-model": saved_model,
    "sklearn-model": estimator,
    "jax-model": jax_function,
}
"""By the kind of `train`."""


def _network() -> object:
    import torch

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, CLASSES)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.conv(image)).mean((2, 3)))

    return Net().eval()


def _keras_network() -> object:
    from frameworks.keras.tensorflow_setup import start_tensorflow

    keras = start_tensorflow()
    keras.utils.set_random_seed(0)
    layers = keras.layers
    image = keras.Input((SIZE, SIZE, 3), name="image")
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(image))
    return keras.Model(image, layers.Dense(CLASSES, name="scores")(pooled))


def torchscript_with_states(folder: Path) -> Brought:
    """A step of an LSTM: a frame and two states -> scores and the new states."""
    import torch

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = torch.nn.LSTMCell(SIZE, 6), torch.nn.Linear(6, CLASSES)

        def forward(
            self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            h, c = self.cell(x, (h, c))
            return self.head(h), h, c

    torch.manual_seed(0)
    torch.jit.script(Step().eval()).save(folder / "step.pt")
    return Brought(folder / "step.pt", {"x": (SIZE,), "h": (6,), "c": (6,)})


def keras_with_states(folder: Path) -> Brought:
    """A step that returns its new state beside its scores."""
    from frameworks.keras.tensorflow_setup import start_tensorflow

    keras = start_tensorflow()
    keras.utils.set_random_seed(0)
    layers = keras.layers
    frame, state = keras.Input((SIZE,), name="frame"), keras.Input((6,), name="state")
    new = layers.Dense(6, activation="tanh", name="state_out")(layers.Concatenate()([frame, state]))
    keras.Model([frame, state], [layers.Dense(CLASSES, name="scores")(new), new]).save(folder / "step.keras")
    return Brought(folder / "step.keras")

"""A model that is ONNX already: copied and signed; weights that have a file of their own are not written again."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pretrained_models
import pytest

from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from gauntlet.onnx_model import model_file
from gauntlet.runtime.session import open_session
from tasks.export import export
from tasks.export.base import AsIs
from tasks.train import train
from tasks.train.onnx_pretrained import OnnxModel


@pytest.mark.parametrize("files", [["model.onnx"], ["model.onnx", "model.onnx.data"]], ids=["small", "large"])
def test_export_answers_as_the_model_that_was_brought_and_leaves_it_whole(
    workspace: Callable[..., Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    if len(files) == 2:
        monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 4000)  # two gigabytes would say the same, slowly
    out = workspace()
    path, samples = pretrained_models.external_data(tmp_path)
    splits = {"test": out.store_file(ArraySplit(samples).save(out.folder, "test"))}
    inputs = (TensorSpec(name="x", dtype="float32", shape=("batch", 16)),)
    brought = train(OnnxModel(model=path), out, splits=splits, signature=Signature(inputs=inputs, outputs=()))
    source, golden, signature = brought.artifacts["model"], brought.artifacts["golden"], brought.facts.signature
    made = export(AsIs(), workspace(), model=source, signature=signature, golden=golden).artifacts["model"]
    assert out.store.is_intact(source)
    assert out.store.is_intact(made)
    assert sorted(file.name for file in out.path(made).parent.iterdir()) == files
    written = onnx.load(out.path(made))
    assert (written.producer_name, written.producer_version) == ("onnx-gauntlet", version("onnx-gauntlet"))
    first, second = (open_session(file).run(None, samples)[0] for file in (path, out.path(made)))
    assert np.array_equal(first, second)

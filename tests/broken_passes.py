"""A small network with known nodes, its golden outputs, and user-defined passes that improve or break it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.optimize.graph_pass import PythonPass

OWN = '''
import os, signal, time
import numpy as np
import onnx
from onnx import numpy_helper


def nothing(model):
    return model


def no_identities(model):
    """Remove every Identity, which no runtime computes."""
    renamed = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    kept = [node for node in model.graph.node if node.op_type != "Identity"]
    for node in kept:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def wrong_bias(model):
    """Spoil the bias of the second convolution."""
    for node in model.graph.node:
        for weight in model.graph.initializer:
            if node.name == "conv2" and weight.name == node.input[2]:
                weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 0.5, weight.name))
    return model


def another_class(model):
    """Make class 0 the best one of every image."""
    for node in model.graph.node:
        for weight in model.graph.initializer:
            if node.name == "fc" and weight.name == node.input[2]:
                bias = numpy_helper.to_array(weight) + 40 * np.eye(10, dtype=np.float32)[0]
                weight.CopyFrom(numpy_helper.from_array(bias, weight.name))
    return model


def unknown_operator(model):
    for node in model.graph.node:
        if node.name == "relu2":
            node.op_type = "Rellu"
    return model


def no_relu(model):
    if any(node.name == "relu3" for node in model.graph.node):
        raise ValueError("relu3 is more than it can take")
    return model


def crash(model):
    if any(node.op_type == "GlobalAveragePool" for node in model.graph.node):
        os.kill(os.getpid(), signal.SIGSEGV)
    return model


def hang(model):
    time.sleep(1000)


def renamed_input(model):
    model.graph.input[0].name = model.graph.node[0].input[0] = "other"
    return model


def wide_output(model):
    """Give the same values in another type."""
    model.graph.node[-1].output[0] = "narrow"
    cast = model.graph.node.add(op_type="Cast", input=["narrow"], output=["y"])
    cast.attribute.add(name="to", type=onnx.AttributeProto.INT, i=onnx.TensorProto.DOUBLE)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return model


def number(model):
    return 7


def needless_work(model):
    """Add a hundred times the work, times zero."""
    graph = model.graph
    name = graph.output[0].name
    maker = next(node for node in graph.node if name in node.output)
    maker.output[0] = "before"
    add = graph.node.add
    graph.initializer.append(numpy_helper.from_array(np.eye(512, dtype=np.float32), "eye"))
    graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    add(op_type="ReduceSum", input=["before"], output=["sum"]).attribute.add(
        name="keepdims", type=onnx.AttributeProto.INT, i=0)
    add(op_type="Mul", input=["eye", "sum"], output=["product0"])
    for i in range(4):
        add(op_type="MatMul", input=[f"product{i}", "eye"], output=[f"product{i + 1}"])
    add(op_type="ReduceSum", input=["product4"], output=["all"]).attribute.add(
        name="keepdims", type=onnx.AttributeProto.INT, i=0)
    add(op_type="Mul", input=["all", "zero"], output=["nothing"])
    add(op_type="Add", input=["before", "nothing"], output=[name])
    return model
'''


NETWORK = """
    network (float[batch,3,16,16] x) => (float[batch,10] y)
    < float[16,3,3,3] w1, float[16] b1, float[16] scale1, float[16] shift1, float[16] mean1, float[16] var1,
        float[16,16,3,3] w2, float[16] b2, float[16] scale2, float[16] shift2, float[16] mean2, float[16] var2,
        float[32,16,3,3] w3, float[32] b3, float[32] scale3, float[32] shift3, float[32] mean3, float[32] var3,
        float[32,10] wf, float[10] bf > {
        [conv1] c1 = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
        [norm1] n1 = BatchNormalization(c1, scale1, shift1, mean1, var1) [relu1] r1 = Relu(n1)
        [same1] i1 = Identity(r1) [conv2] c2 = Conv<pads = [1, 1, 1, 1]>(i1, w2, b2)
        [norm2] n2 = BatchNormalization(c2, scale2, shift2, mean2, var2) [relu2] r2 = Relu(n2)
        [same2] i2 = Identity(r2) [conv3] c3 = Conv<pads = [1, 1, 1, 1]>(i2, w3, b3)
        [norm3] n3 = BatchNormalization(c3, scale3, shift3, mean3, var3) [relu3] r3 = Relu(n3)
        [same3] i3 = Identity(r3) [pool] pooled = GlobalAveragePool(i3) [flatten] flat = Flatten(pooled)
        [fc] y = Gemm(flat, wf, bf)
    }
"""


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    norms: dict[str, Any] = {}
    for i, width in enumerate((16, 16, 32), start=1):
        norms |= {f"{name}{i}": rng.uniform(0.5, 1.5, width) for name in ("scale", "shift", "mean", "var")}
    model = onnx_text.model(NETWORK, norms)
    signature_from_graph(model).replace(task="classification").write(model)
    return model


@dataclass(frozen=True)
class Subject:
    """A model and its golden outputs in one store."""

    model: Artifact
    golden: Artifact
    out: Workspace


@pytest.fixture
def subject(keep_model: Callable[..., tuple[Workspace, Artifact]], workspace: Callable[..., Workspace]) -> Subject:
    out, model = keep_model(network())
    session, rng = open_session(out.path(model)), np.random.default_rng(1)
    cases = {}
    for title in ("real", "random"):
        inputs: dict[str, Any] = {"x": rng.normal(0, 1, (16, 3, 16, 16)).astype(np.float32)}
        cases[title] = GoldenCase(inputs, batched_inference(session, inputs).run(8))
    Golden(cases, {}).save(out.folder / "golden.npz")
    return Subject(model, out.store_file(out.folder / "golden.npz"), workspace(out.store))


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., PythonPass]:
    (tmp_path / "own_passes.py").write_text(OWN)
    return lambda name: PythonPass(function=f"own_passes:{name}", code_folder=tmp_path)

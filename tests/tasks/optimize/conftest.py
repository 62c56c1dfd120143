"""A small network with known nodes, its golden answers, and passes of a user's own that do it good or harm."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.artifact import Artifact
from tasks.data.golden import Case, Golden
from tasks.optimize.own import OwnPass
from tasks.runtime.session import open_session, run_in_batches
from tasks.signature import describe
from tasks.workspace import Workspace

OWN = '''
import os, signal, time
import numpy as np
import onnx
from onnx import numpy_helper


def nothing(model):
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


def network(widths: tuple[int, ...] = (16, 16, 32)) -> onnx.ModelProto:
    """Return conv, norm, relu and identity for each width, then an average and `fc`; nodes are numbered from 1."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    nodes, before, channels = [], "x", 3
    for i, width in enumerate(widths, start=1):
        weights |= {f"w{i}": rng.normal(0, 0.2, (width, channels, 3, 3)), f"b{i}": rng.normal(0, 1, width)}
        weights |= {f"{name}{i}": rng.uniform(0.5, 1.5, width) for name in ("scale", "shift", "mean", "var")}
        norm = [f"{name}{i}" for name in ("scale", "shift", "mean", "var")]
        nodes += [
            helper.make_node("Conv", [before, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"c{i}", *norm], [f"n{i}"], f"norm{i}"),
            helper.make_node("Relu", [f"n{i}"], [f"r{i}"], f"relu{i}"),
            helper.make_node("Identity", [f"r{i}"], [f"i{i}"], f"same{i}"),
        ]
        before, channels = f"i{i}", width
    weights |= {"wf": rng.normal(0, 1, (channels, 10)), "bf": rng.normal(0, 1, 10)}
    nodes += [
        helper.make_node("GlobalAveragePool", [before], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "wf", "bf"], ["y"], "fc"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    describe(model).write(model)
    return model


@dataclass(frozen=True)
class Subject:
    """A model and its golden answers in one store."""

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
        cases[title] = Case(inputs, run_in_batches(session, inputs, 8))
    Golden(cases, {}).save(out.folder / "golden.npz")
    golden = out.keep(out.folder / "golden.npz")
    return Subject(model, golden, workspace(out.store))


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., OwnPass]:
    (tmp_path / "own_passes.py").write_text(OWN)
    return lambda name: OwnPass(function=f"own_passes:{name}", folder=tmp_path)

"""tf2onnx on Keras networks: the package as both exporters use it, and a trial before a training."""

import contextlib
import logging
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import onnx

from frameworks.keras.model import from_network, functional
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import all_nodes
from gauntlet.runtime.operator_libraries import operator_libraries
from gauntlet.runtime.operator_support import unsupported_nodes

OF_TEXTS = ("String", "Regex", "Lookup", "Ragged", "Unicode")
"""Words in the names of operators that read texts."""


@contextlib.contextmanager
def converting() -> Iterator[Any]:
    """Yield the package `tf2onnx`, silenced; an exception inside becomes a StageError."""
    start_tensorflow()
    import tf2onnx
    import tf2onnx.tfonnx

    _mend_tf2onnx()
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    tf2onnx.utils.INTERNAL_NAME = 1  # restart the numbering of tensors, so that equal models become equal files
    try:
        with inlined_functions():
            yield tf2onnx
    except Exception as error:  # TensorFlow's, the protocol buffers' and its own
        reason = one_line(error)
        raise StageError(f"tf2onnx {tf2onnx.__version__} cannot convert the model: {reason}") from error
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def inlined_functions() -> Iterator[None]:
    """Trace the functions inside a network as part of its graph.

    Keras compiles grouped convolutions with XLA; otherwise tf2onnx leaves each as a `StatefulPartitionedCall`.
    """
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def require_convertible(network: Any, opset: int = 18) -> None:
    """Raise StageError with the operators of a Keras network that tf2onnx cannot convert.

    The graph is traced; it is converted, which takes longer, only if tf2onnx has no handler for one of its operators:
    some patterns are converted as a whole. With operator libraries, nothing is tried.
    """
    if operator_libraries():
        return
    with converting() as tf2onnx:
        if not _operators(network) - {*tf2onnx.handler.tf_op.create_mapping(opset, None), "ReadVariableOp"}:
            return
        proto, _ = tf2onnx.convert.from_keras(functional(network), opset=opset)
    require_converted(proto)


def pad_as_tensorflow(proto: onnx.ModelProto) -> None:
    """Pad transposed convolutions whose size tf2onnx does not know as TensorFlow does, in place: more at the end."""
    for node in all_nodes(proto.graph):
        names = {attribute.name for attribute in node.attribute}
        if node.op_type == "ConvTranspose" and "output_shape" in names and "auto_pad" not in names:
            node.attribute.append(onnx.helper.make_attribute("auto_pad", "SAME_UPPER"))


def require_converted(proto: onnx.ModelProto) -> None:
    """Raise StageError with the operators of TensorFlow that tf2onnx has left in a graph; none without libraries."""
    from tf2onnx import __version__

    operators = sorted({node.op_type for node in unsupported_nodes(proto)})
    if operators and not operator_libraries():
        texts = any(word in name for name in operators for word in OF_TEXTS)
        note = " (texts are prepared outside of the model)" if texts else ""
        raise StageError(
            f"tf2onnx {__version__} cannot convert {', '.join(operators)}. Fix: use layers without it{note}, or name "
            "the library that implements it under operator_libraries"
        )


def _operators(network: Any) -> set[str]:
    graph = from_network(network).call.get_concrete_function().graph  # type: ignore[attr-defined]
    return {operation.type for operation in graph.get_operations()}


@cache
def _mend_tf2onnx() -> None:
    """Teach tf2onnx 1 - Erf(x), which GELU is made of, and Exp(x) - 1, of which CELU is made.

    Its last step writes transposes of single pixels as reshapes; the next round then moves the other transposes past
    them, and norms of single pixels average the wrong axis. ONNX Runtime needs no such step. Its sets of nodes are put
    in the order of their names, not of their places in memory, so that equal models become equal files.
    """
    from tf2onnx.graph import Node
    from tf2onnx.optimizer.optimizer_base import GraphOptimizerBase
    from tf2onnx.optimizer.transpose_optimizer import TransposeOptimizer

    TransposeOptimizer.post_optimize_action = lambda self: None
    Node.__hash__ = lambda self: crc32(self.name.encode())
    Node.__deepcopy__ = _copy_node
    GraphOptimizerBase.optimize = _optimize
    _register("Erfc", "Erf", one_first=True)
    _register("Expm1", "Exp", one_first=False)


def _copy_node(node: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a node of tf2onnx, which copies the graph before each of its steps; weights are shared."""
    memo[id(node)] = copy = object.__new__(type(node))
    copy._op = onnx.NodeProto(name=node.name, op_type=node.type, domain=node.domain or None)
    copy._attr = dict(node.attr)
    rest = {name: value for name, value in vars(node).items() if name not in ("_op", "_attr")}
    vars(copy).update(deepcopy(rest, memo))
    return copy


def _optimize(self: Any, graph: Any, iteration: int) -> Any:
    """Take one step of tf2onnx's optimization without writing all weights anew, into memory that stays occupied."""
    self.opt_iteration = iteration
    graph = self._optimize(graph)
    for node in graph.get_nodes():
        if node.get_body_graphs():
            node.update_proto()
    graph.delete_unused_nodes(graph.outputs)
    return graph


def _register(operator: str, function: str, *, one_first: bool) -> None:
    """Teach tf2onnx an operator that is the difference between 1 and a function."""
    from tf2onnx import utils
    from tf2onnx.handler import tf_op

    @tf_op(operator)
    class Difference:
        @classmethod
        def version_9(cls, ctx: Any, node: Any, **_: Any) -> None:
            (output,) = node.output
            dtype, shape = ctx.get_dtype(output), ctx.get_shape(output)
            one = ctx.make_const(utils.make_name("one"), np.array(1, utils.map_onnx_to_numpy_type(dtype)))
            terms = [one.output[0], ctx.make_node(function, node.input, dtypes=[dtype], shapes=[shape]).output[0]]
            ctx.remove_node(node.name)
            ctx.make_node(
                "Sub",
                terms if one_first else terms[::-1],
                name=node.name,
                outputs=[output],
                dtypes=[dtype],
                shapes=[shape],
            )

"""A signature that follows the changes of its graph."""

import onnx

from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.onnx_model.graph import Shape, tensor_shape


def updated_signature(signature: Signature, before: onnx.GraphProto, after: onnx.GraphProto) -> Signature:
    """Return the signature with the changes of the graph's inputs and outputs: their shapes, and inputs that are gone.

    What did not change in the graph stays as it is in the signature, which is the contract with the callers.
    """
    was, now = (
        {value.name: tensor_shape(value) for value in (*graph.input, *graph.output)} for graph in (before, after)
    )
    changed = {name: shape for name, shape in now.items() if shape != was.get(name)}
    inputs, outputs = (
        tuple(_updated(spec, changed) for spec in specs if spec.name in now or spec.name not in was)
        for specs in (signature.inputs, signature.outputs)
    )
    return signature.replace(inputs=inputs, outputs=outputs)


def _updated(spec: TensorSpec, changed: dict[str, Shape | None]) -> TensorSpec:
    shape = changed.get(spec.name)
    if shape is None or len(shape) != len(spec.shape):
        return spec
    axes = zip(shape, spec.shape, strict=True)
    return spec.replace(shape=tuple(old if new is None else new for new, old in axes))

"""Nodes for converters of skl2onnx."""

from typing import Any

import numpy as np
import onnx

TYPES = onnx.TensorProto
BOOL, DOUBLE, FLOAT, INT64 = int(TYPES.BOOL), int(TYPES.DOUBLE), int(TYPES.FLOAT), int(TYPES.INT64)
FUNCTIONS: dict[Any, tuple[tuple[str, float | None], ...]] = {
    np.log: (("Log", None),),
    np.log1p: (("Add", 1.0), ("Log", None)),
    np.log2: (("Log", None), ("Mul", float(1 / np.log(2)))),
    np.log10: (("Log", None), ("Mul", float(1 / np.log(10)))),
    np.exp: (("Exp", None),),
    np.expm1: (("Exp", None), ("Sub", 1.0)),
    np.sqrt: (("Sqrt", None),),
    np.square: (("Pow", 2.0),),
    np.abs: (("Abs", None),),
    np.sin: (("Sin", None),),
    np.cos: (("Cos", None),),
    np.tanh: (("Tanh", None),),
}
"""Functions of NumPy: the operators that compute them, and their second inputs."""


class Nodes:
    """Adds nodes to the graph that skl2onnx makes of an operator."""

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope, self._container = scope, container

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Return the name of a constant."""
        array, name = np.asarray(value, dtype), str(self._scope.get_unique_variable_name("constant"))
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self._container.add_initializer(name, kind, list(array.shape), array.ravel().tolist())
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = output or str(self._scope.get_unique_variable_name(f"made_{kind.lower()}"))  # no name of skl2onnx
        name = self._scope.get_unique_operator_name(kind)
        self._container.add_node(kind, list(inputs), output, name=name, **attributes)
        return output

    def matrix(self, inputs: Any) -> str:
        """Return the columns of all inputs side by side."""
        names = [variable.full_name for variable in inputs]
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=1)

    def function(self, of: Any, source: str, output: str) -> None:
        """Compute a function in float64, as NumPy does, and round the result."""
        if of is None:
            self.add("Identity", source, output=output)
            return
        if of not in FUNCTIONS:
            raise NotImplementedError(f"the function {getattr(of, '__name__', of)}")
        name = self.add("Cast", source, to=DOUBLE)
        for kind, second in FUNCTIONS[of]:
            name = self.add(kind, name, *([] if second is None else [self.constant(second, np.float64)]))
        self.add("Cast", name, output=output, to=FLOAT)

"""jax2onnx: export Flax networks and JAX functions to standard ONNX operators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import onnx
from pydantic import Field

from frameworks.jax import function as jax_function
from frameworks.jax import network as flax_network
from frameworks.session import distinct_outputs
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.signature import Signature
from tasks.export.base import Exporter


class Jax2Onnx(Exporter):
    """`jax2onnx.to_onnx` with a symbolic batch."""

    kind: Literal["jax2onnx"] = "jax2onnx"
    opset: int = Field(18, ge=15, le=23, description="ONNX operator set")

    framework: ClassVar[str] = "jax"
    packages: ClassVar[dict[str, str]] = {"flax": "jax", "jax2onnx": "jax"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export what is saved in `model` to `path`. Raises StageError when jax2onnx cannot convert it."""
        flax_network.use_cpu()
        _register_remainder()
        proto = (
            self._function(model, signature) if model.suffix == jax_function.SUFFIX else self._flax(model, signature)
        )
        # jax2onnx moves transposes but keeps the old shapes of intermediate tensors; shape inference restores them.
        del proto.graph.value_info[:]
        onnx.save(proto, path)

    def _flax(self, model: Path, signature: Signature) -> onnx.ModelProto:
        """Convert a Flax network; the graph transposes NCHW inputs."""
        network, spec = flax_network.load(model)
        inputs = [("batch", spec.height, spec.width, spec.channels)]
        return self._converted(
            network, inputs, signature, model_name="flax", inputs_as_nchw=[0] if spec.layout == "NCHW" else None
        )

    def _function(self, model: Path, signature: Signature) -> onnx.ModelProto:
        """Convert a user's function; its parameters become initializers."""
        import jax

        function, spec = jax_function.load(model, trust=True)
        names, taken = [output.name for output in signature.outputs], [each.name for each in spec.inputs]

        def ordered(*inputs: Any) -> tuple[Any, ...]:
            outputs = distinct_outputs(jax_function.named_outputs(function(*inputs), spec.code.name), taken)
            return tuple(outputs[name] for name in names)

        described: Callable[[Any, str], Any] = jax.ShapeDtypeStruct
        inputs = [described(each.shape, each.dtype) for each in spec.inputs]
        try:
            proto = self._converted(ordered, inputs, signature, model_name=spec.code.name)
            onnx.checker.check_model(proto)
        except Exception as error:  # JAX's, and jax2onnx's for a primitive that it does not know
            reason = one_line(error)
            raise StageError(
                f"jax2onnx cannot convert train.function: {spec.code.name}: {reason}. Fix: compute this step with "
                "other functions, or provide the model as ONNX"
            ) from error
        return proto

    def _converted(self, function: Any, inputs: list[Any], signature: Signature, **options: Any) -> onnx.ModelProto:
        import jax2onnx

        proto: onnx.ModelProto = jax2onnx.to_onnx(
            function,
            inputs,
            opset=self.opset,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
            **options,
        )
        return proto


def _register_remainder() -> None:
    """Register `Mod` for `lax.rem`, with the dividend's sign as C's `fmod`; jax2onnx's own has no open batch."""
    from jax import lax
    from jax2onnx.plugins.plugin_system import PrimitiveLeafPlugin, import_all_plugins, register_primitive

    import_all_plugins()  # else jax2onnx would register its own later

    @register_primitive(jaxpr_primitive=lax.rem_p.name)
    class Remainder(PrimitiveLeafPlugin):  # type: ignore[misc]
        def lower(self, ctx: Any, eqn: Any) -> None:
            import onnx_ir
            from jax2onnx.plugins._ir_shapes import _stamp_type_and_shape

            dividend, divisor = eqn.invars
            first = ctx.get_value_for_var(dividend, name_hint=ctx.fresh_name("dividend"))
            dtype = np.dtype(dividend.aval.dtype)
            second = ctx.get_value_for_var(divisor, name_hint=ctx.fresh_name("divisor"), prefer_np_dtype=dtype)
            result = ctx.builder.Mod(first, second, fmod=1, _outputs=[ctx.fresh_name("remainder")])
            result.type = onnx_ir.TensorType(first.type.dtype)
            _stamp_type_and_shape(result, tuple(eqn.outvars[0].aval.shape))
            ctx.bind_value_for_var(eqn.outvars[0], result)

"""A remainder with an open batch for jax2onnx, which stores the shape of its own as numbers."""

from typing import Any

import numpy as np


def register() -> None:
    """Register the operator `Mod` for `lax.rem`, whose sign is the dividend's, as that of C's `fmod`."""
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

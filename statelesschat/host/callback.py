"""A callback of the host as a part of a program: `jax.experimental.io_callback` without what it does for each call.

``io_callback`` puts its arguments on a device, enters a configuration and flattens trees, each time: 250 us for 1024
rows of 80 ids, as much as all else together. What is left out here is not needed for one array in and one out. The
parts of jax this stands on are not public; where a version of jax has them no more, ``io_callback`` itself is taken.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jaxtyping import Array, Int

Call = Callable[[Any], Any]


def public_callback(packed: Int[Array, "... A"], call: Call, width: int) -> Int[Array, "... W"]:
    """By what jax has for everyone."""
    return io_callback(call, jax.ShapeDtypeStruct((*packed.shape[:-1], width), jnp.int32), packed)


try:
    from jax._src.callback import _callback_op_sharding, _IOEffect
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    _emit: Any = mlir.emit_python_callback
except (ImportError, AttributeError):
    host_callback = public_callback
else:
    _primitive = Primitive("reach_host")
    _primitive.multiple_results = True

    @_primitive.def_effectful_abstract_eval
    def _shaped(packed: Any, *, call: Call, width: int) -> tuple[list[Any], set[Any]]:
        del call
        return [ShapedArray((*packed.shape[:-1], width), jnp.int32)], {_IOEffect}

    def _lowered(ctx: Any, packed: Any, *, call: Call, width: int) -> Any:
        del width
        result, _, _ = _emit(
            ctx,
            lambda packed: (call(packed),),
            None,
            [packed],
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=True,
            returns_token=False,
            sharding=_callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out),
        )
        return result

    mlir.register_lowering(_primitive, _lowered)

    def host_callback(packed: Int[Array, "... A"], call: Call, width: int) -> Int[Array, "... W"]:
        """Call the host within a program, once each time it comes by; neither batched nor differentiated.

        Args:
            packed: int32[..., A], what it is given, as what `numpy.asarray` takes.
            call: to int32[..., W] of numpy; it must not raise. Programs with equal ones are compiled once.
            width: W.
        """
        (result,) = _primitive.bind(packed, call=call, width=width)
        return result

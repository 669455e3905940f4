"""A callback of the host as a part of a program: `jax.experimental.io_callback` without what it does for each call.

``io_callback`` puts its arguments on a device, enters a configuration and flattens trees each time, which takes about
as long as all else together. None of it is needed where arrays become numpy. The parts of jax this stands on are not
public; where a version of jax has them no more, ``io_callback`` itself is taken.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jaxtyping import Array

Call = Callable[..., Any]
Shapes = Sequence[tuple[int, ...]]


def public_callback(call: Call, shapes: Shapes, *arrays: Array) -> list[Array]:
    """By what jax has for everyone."""
    return io_callback(call, [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes], *arrays)


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
    def _shaped(*arrays: Any, call: Call, shapes: Shapes) -> tuple[list[Any], set[Any]]:
        del arrays, call
        return [ShapedArray(shape, jnp.int32) for shape in shapes], {_IOEffect}

    def _lowered(ctx: Any, *arrays: Any, call: Call, shapes: Shapes) -> Any:
        del shapes
        sharding = _callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)
        results, _, _ = _emit(
            ctx,
            call,
            None,
            list(arrays),
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=True,
            returns_token=False,
            sharding=sharding,
        )
        return results

    mlir.register_lowering(_primitive, _lowered)

    def host_callback(call: Call, shapes: Shapes, *arrays: Array) -> list[Array]:
        """Call the host within a program, once each time it comes by; neither batched nor differentiated.

        Args:
            call: gets what `numpy.asarray` takes, gives numpy int32 arrays, and must not raise. Programs with equal
                ones are compiled once.
            shapes: of what it gives.
            *arrays: what it gets.
        """
        return _primitive.bind(*arrays, call=call, shapes=tuple(shapes))

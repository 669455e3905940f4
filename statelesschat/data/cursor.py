"""Where the drawing of rows stands: a few plain arrays, saved and restored as any others."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["key", "epoch", "position", "num_epochs", "epoch_ended"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Cursor:
    """How far rows were handed out; `make_cursor` makes one, `next_batch` moves it.

    It says all that later batches depend on besides the table and the arguments, so a run goes on exactly from one
    that was saved with ``np.savez(file, **dataclasses.asdict(cursor))``, pickle or orbax.
    """

    key: UInt32[Array, "2"]  # uint32, what the order of every epoch is computed from
    epoch: Int[Array, ""]  # int32, epochs ended so far
    position: Int[Array, ""]  # int32, slots (rows times repeats) handed out of this shard's epoch
    num_epochs: Int[Array, ""]  # int32, epochs in all; -1: for ever
    epoch_ended: Bool[Array, ""]  # whether the call that gave this cursor handed out the last slot of an epoch

    @property
    def exhausted(self) -> Bool[Array, ""]:
        """Whether all epochs have ended, so that nothing more is drawn."""
        return (self.num_epochs >= 0) & (self.epoch >= self.num_epochs)


def make_cursor(key: Any, *, num_epochs: int | None = None) -> Cursor:
    """A cursor at the beginning of the first epoch.

    Args:
        key: a key of `jax.random`, or an int seed from 0 on, from which the order of every epoch follows.
        num_epochs: epochs until nothing more is drawn; None: for ever.

    Example:
        >>> cursor = make_cursor(0, num_epochs=2)
        >>> int(cursor.epoch), int(cursor.position), bool(cursor.exhausted)
        (0, 0, False)
    """
    if num_epochs is not None and (isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 1):
        raise ValueError(f"num_epochs={num_epochs!r}; give a whole number from 1 on, or None for epochs without end")
    return Cursor(
        key=_bits(key),
        epoch=jnp.zeros((), jnp.int32),
        position=jnp.zeros((), jnp.int32),
        num_epochs=jnp.asarray(-1 if num_epochs is None else num_epochs, jnp.int32),
        epoch_ended=jnp.zeros((), bool),
    )


def _bits(key: Any) -> UInt32[Array, "2"]:
    if isinstance(key, bool) or not isinstance(key, int | np.integer | jax.Array | np.ndarray):
        raise TypeError(f"key is {key!r}; give jax.random.key(0) or an int")
    if isinstance(key, int | np.integer):
        if key < 0:
            raise ValueError(f"key={key}; a seed is 0 or more")
        return jnp.asarray(np.random.SeedSequence(int(key)).generate_state(2), jnp.uint32)
    try:
        return jax.random.bits(key, (2,), jnp.uint32)
    except (TypeError, ValueError) as error:
        raise TypeError(f"key is an array {key.dtype}{list(key.shape)}; give jax.random.key(0) or an int") from error

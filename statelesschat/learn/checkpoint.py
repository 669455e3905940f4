"""Checkpoints: all of a run in one folder, written whole or not at all, and read back bit for bit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from statelesschat.learn.training import TrainState

_SHAPES = "shapes of the leaves"  # of the state; compared before anything is read
_KEPT = 2  # checkpoints; the one before the last is there should the last be damaged


class CheckpointError(ValueError):
    """A checkpoint that is not there, cannot be read, or is of another run."""


def save_checkpoint(folder: str | Path, state: TrainState, about: Mapping[str, Any]) -> None:
    """Write a checkpoint of params, optimiser, conversations, cursor and key; the two newest are kept.

    It is written beside the others and renamed when it is complete (orbax does), so a run that is killed in the
    middle leaves the one before. One of the same update is replaced.

    Args:
        folder: made where it does not exist.
        state: the run.
        about: what a run has to have alike to go on from it, as JSON: sizes, task, options.
    """
    import orbax.checkpoint as ocp

    step = int(state.update)
    with _manager(folder) as manager:
        if step in manager.all_steps():
            manager.delete(step)
        manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_arrays(state)), about=ocp.args.JsonSave({**about, _SHAPES: _shapes(state)})
            ),
        )


def latest_checkpoint(folder: str | Path) -> int | None:
    """The update of the newest checkpoint in a folder; None where there is none."""
    if not Path(folder).is_dir():
        return None
    with _manager(folder) as manager:
        return manager.latest_step()


def read_about(folder: str | Path) -> dict[str, Any]:
    """What the newest checkpoint was said to be about. CheckpointError where there is none."""
    import orbax.checkpoint as ocp

    step = latest_checkpoint(folder)
    if step is None:
        raise CheckpointError(f"there is no checkpoint in {str(folder)!r}")
    with _manager(folder) as manager:
        return dict(manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"])


def restore_checkpoint(folder: str | Path, like: TrainState, about: Mapping[str, Any]) -> TrainState:
    """The run as it was saved; training goes on from it as if it had never stopped, bit for bit.

    Args:
        folder: of `save_checkpoint`.
        like: a state of the same recipe, as `begin_training` makes it, for structure, shapes and dtypes.
        about: as it was saved.

    Raises:
        CheckpointError: no checkpoint; one that is about something else, naming what differs; one that cannot be read.
    """
    import orbax.checkpoint as ocp

    saved, wanted = read_about(folder), json.loads(json.dumps(dict(about)))
    shapes = saved.pop(_SHAPES, None)
    differs = [name for name in {**saved, **wanted} if saved.get(name) != wanted.get(name)]
    if differs:
        told = "; ".join(f"{name}: saved {saved.get(name)!r}, now {wanted.get(name)!r}" for name in differs)
        raise CheckpointError(
            f"the checkpoint in {str(folder)!r} is of another run ({told}); give the same options to go on with it, or "
            "another folder to begin anew"
        )
    if shapes != _shapes(like):
        raise CheckpointError(
            f"the checkpoint in {str(folder)!r} is of a run of other sizes (model, optimiser, batch or widths), though "
            "about the same; make the state it is restored into as the saved one was made"
        )
    arrays = _arrays(like)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
    step = latest_checkpoint(folder)
    try:
        with _manager(folder) as manager:
            found = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))["state"]
    except (ValueError, KeyError, OSError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"the checkpoint of update {step} in {str(folder)!r} cannot be read ({reason}); delete its folder to go on "
            "with the one before"
        ) from None
    return _state(like, found)


def _manager(folder: str | Path) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=_KEPT, enable_async_checkpointing=False, create=True)
    return ocp.CheckpointManager(Path(folder).absolute(), options=options)


def _arrays(state: TrainState) -> dict[str, Any]:
    """All leaves by number, keys as their bits: no structure of ours is in the file format."""
    return {f"{i:05d}": _plain(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}


def _shapes(state: TrainState) -> list[str]:
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in _arrays(state).values()]


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _state(like: TrainState, arrays: Mapping[str, Any]) -> TrainState:
    leaves, structure = jax.tree.flatten(like)
    found = []
    for i, old in enumerate(leaves):
        new = arrays[f"{i:05d}"]
        is_key = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
        found.append(jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if is_key else jnp.asarray(new))
    return jax.tree.unflatten(structure, found)

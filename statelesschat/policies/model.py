"""What a causal language model has to be for the sampler and the losses: two pure functions and a size."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from statelesschat.core.config import Static

Cache = Any  # a pytree of arrays, the batch their leading axis


@dataclasses.dataclass(frozen=True, eq=False)
class Model(Static):
    """A causal model as pure functions. Hashable, so that it is a constant of jit; its params are not in it.

    The one rule about caches: what belongs to position p lies in slot p, and a query at position p sees the slots 0 to
    p and no others. So rows of different lengths need no mask and no padding on the left: what was fed behind a row's
    last id is overwritten by the id that really comes there before any query can see it.
    """

    apply: Callable[[Any, Int[Array, "B T"], Int[Array, "B T"], Cache | None], tuple[Float[Array, "B T V"], Cache]]
    """``(params, tokens, positions, cache) -> (logits, cache)``.

    ``logits[b, t]`` is of the id behind ``tokens[b, t]``. Positions of a row are consecutive. With a cache each row
    writes its slots ``positions[b]``, and may begin where it likes; without one (None) positions are 0, 1, 2, …, the
    tokens see each other causally, and None is returned for the cache.
    """

    init_cache: Callable[[int, int], Cache]
    """``(batch, slots) -> cache``, blank."""

    vocab_size: int
    """V, ids that have logits; at least as many as the tokenizer has."""

    abstract_params: Any = dataclasses.field(default=None, compare=False)
    """Params as `jax.ShapeDtypeStruct`, by which those that do not fit are told early; None: not checked."""


def check_params(model: Model, params: Any) -> None:
    """Raise ValueError for params whose structure, shapes or dtypes are not the model's, naming the first that differs.

    Raises:
        ValueError: saying which param, what it is and what the model has in its place.
    """
    if model.abstract_params is None:
        return
    wanted = dict(_named(model.abstract_params))
    given = dict(_named(params))
    missing = [name for name in wanted if name not in given]
    extra = [name for name in given if name not in wanted]
    if missing or extra:
        told = [f"{what}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}" for what, names in
                (("missing", missing), ("unknown", extra)) if names]  # fmt: skip
        raise ValueError(
            f"these params are not the model's ({'; '.join(told)}); load or initialise them for this model"
        )
    for name, leaf in wanted.items():
        shape, dtype = tuple(given[name].shape), given[name].dtype
        if shape != tuple(leaf.shape) or dtype != leaf.dtype:
            raise ValueError(
                f"param {name} is {dtype}{list(shape)}, the model has {leaf.dtype}{list(leaf.shape)} there; these "
                "params are of a model of another size or dtype"
            )


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path) or "(root)", leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]

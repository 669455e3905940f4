"""Pretrained models: a folder as transformers writes it, computed by google-tunix, as a `Model` and its params."""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from statelesschat.envs.env import Bound
from statelesschat.policies.checkpoint import Architecture, check_weights, read_architecture
from statelesschat.policies.model import Model, check_params

_DTYPES = ("float32", "bfloat16")

_Cache = tuple[tuple[Array, Array], ...]  # keys and values of each layer, [B, S, K, H]


class _Family(NamedTuple):
    module: str  # of tunix.models
    model: str  # its class there
    tied: str  # what its config calls `Architecture.tied`
    has_dtype: bool  # whether its config has dtypes; one without computes in that of the params
    rotated: tuple[str, ...]  # what gives the queries and keys that have to be rotated here


# tunix 0.1.7 rotates the heads of Qwen3 and Llama 3 by a theta of 1 000 000, whatever the config says.
_FAMILIES = {
    "Qwen2ForCausalLM": _Family("qwen2", "Qwen2", "use_tied_embedding", True, ()),
    "Qwen3ForCausalLM": _Family("qwen3", "Qwen3", "use_tied_embedding", True, ("q_norm", "k_norm")),
    "LlamaForCausalLM": _Family("llama3", "Llama3", "weight_tying", False, ("q_proj", "k_proj")),
}


def load_model(folder: str | os.PathLike[str], *, dtype: Any = np.float32) -> tuple[Model, Any]:
    """A pretrained model and its params, from a local folder with config.json and *.safetensors.

    Qwen2ForCausalLM (Qwen2, Qwen2.5), Qwen3ForCausalLM (dense) and LlamaForCausalLM (with the rotary positions of
    Llama 3.1 as well) can be loaded. google-tunix computes them: ``pip install google-tunix``; nothing else in
    statelesschat needs it. Equal configs give equal models, which share their compiled programs.

    Params are nested dicts of arrays of ``dtype``, on the first device. Logits are float32, ``[B, T, V]``. The cache
    has keys and values of each layer, ``dtype[B, slots, key-value heads, head width]``. A chunk of T ids has to end
    within the slots, in every row: tunix would write one that does not further to the front, over ids that are there.
    Positions from ``max_position_embeddings`` on are computed as any others. On GPUs and TPUs float32 products are
    rounded, unless ``jax.default_matmul_precision("highest")`` is set. To share out the work, place params and batch on
    a mesh, with `jax.set_mesh` at most: under the deprecated ``with mesh:`` tunix asks for axes of its own.

    Args:
        folder: written by ``save_pretrained``, or downloaded; nothing is downloaded here.
        dtype: float32 or bfloat16, of params, computation and cache. Weights of other dtypes are converted.

    Raises:
        ImportError: google-tunix is not there.
        FileNotFoundError: no such folder, or one of the two kinds of files is not in it.
        ValueError: another architecture or dtype; what tunix does not compute (sliding windows, experts, other biases
            and activations, other rotary scalings); quantised weights; weights that are missing, unknown, twice there
            or of other shapes than the config says; a file that is cut short. Told before any weight is loaded.

    Example::

        model, params = load_model("Qwen3-0.6B", dtype=jnp.bfloat16)
        policy = sampler(model, config)

    Source: google-tunix 0.1.7; names and shapes of weights are those of transformers 5.
    """
    from flax import nnx

    name = _dtype_name(dtype)
    path = Path(folder).expanduser()
    architecture = read_architecture(path)
    mixed = check_weights(path, architecture)
    static = (architecture, name)
    with _rules_of_tunix():
        _, abstract = _blank(*static)
        family = _FAMILIES[architecture.name]
        loaded = _tunix(family.module, "params").create_model_from_safe_tensors(
            str(path),
            _tunix_config(*static),
            dtype=getattr(jnp, name),
            mode="original" if mixed else "auto",  # the fast one reads all of a file in the dtype of its first weight
        )
        params = nnx.split(loaded)[1].to_pure_dict()
    model = Model(
        apply=Bound(_apply, static),
        init_cache=Bound(_init_cache, static),
        vocab_size=architecture.vocab_size,
        abstract_params=abstract,
    )
    check_params(model, params)
    return model, params


def _dtype_name(dtype: Any) -> str:
    with contextlib.suppress(TypeError):
        if dtype is not None and np.dtype(dtype).name in _DTYPES:
            return np.dtype(dtype).name
    raise ValueError(f"dtype={dtype!r}; give {' or '.join(_DTYPES)}")


def _apply(architecture: Architecture, dtype: str, params: Any, tokens: Any, positions: Any, cache: Any) -> Any:
    return _program(architecture, dtype, params, tokens, positions, cache)  # which, unlike this, cannot be pickled


def _computed(
    architecture: Architecture,
    dtype: str,
    params: Any,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    cache: _Cache | None,
) -> tuple[Float[Array, "B T V"], _Cache | None]:
    length = tokens.shape[1]
    forward = functools.partial(_forward, architecture, dtype, params)
    with _rules_of_tunix():
        if cache is None:
            return forward(tokens, positions, None, np.tri(length, dtype=bool)[None])[0], None
        slots = cache[0][0].shape[1]
        if length > slots:
            raise ValueError(f"{length} ids are fed to a cache of {slots} slots; feed fewer, or make a larger cache")

        def row(tokens: Array, positions: Array, cache: _Cache) -> tuple[Array, _Cache]:
            # tunix writes all rows of a batch at the place of the first, so each row is a batch of its own.
            held = {
                f"layer_{i}": {"k": key[None], "v": value[None], "end_index": positions[:1]}
                for i, (key, value) in enumerate(cache)
            }
            mask = jnp.arange(slots)[None, None, :] <= positions[None, :, None]
            logits, held = forward(tokens[None], positions[None], held, mask)
            return logits[0], tuple((layer["k"][0], layer["v"][0]) for layer in held.values())

        return jax.vmap(row)(tokens, positions, cache)


_program = jax.jit(_computed, static_argnums=(0, 1), inline=True)


def _init_cache(architecture: Architecture, dtype: str, batch: int, slots: int) -> _Cache:
    shape = (batch, slots, architecture.num_kv_heads, architecture.head_dim)
    return tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(architecture.num_layers))


def _forward(
    architecture: Architecture,
    dtype: str,
    params: Any,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    cache: Any,
    mask: Bool[Array, "B T S"] | Bool[np.ndarray, "1 T T"],
) -> tuple[Float[Array, "B T V"], Any]:
    """The model of tunix, with our rotary positions where its own are wrong."""
    from flax import nnx

    model = nnx.merge(_blank(architecture, dtype)[0], params)
    rotated = _FAMILIES[architecture.name].rotated
    if rotated:
        frequencies = jnp.asarray(architecture.frequencies, jnp.float32)
        angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None, :]
        for layer in model.layers:
            for name in rotated:
                setattr(layer.attn, name, _rotating(getattr(layer.attn, name), angles))
        positions = jnp.zeros_like(positions)  # by which tunix rotates again
    logits, cache = model(tokens, positions, cache, mask)
    return logits.astype(jnp.float32), cache


def _rotating(heads: Callable[[Array], Array], angles: Float[Array, "B T 1 H/2"]) -> Callable[[Array], Array]:
    """What gives heads, which are then rotated: their first halves against their second (Su et al., 2021)."""
    sine, cosine = jnp.sin(angles), jnp.cos(angles)

    def rotated(x: Array) -> Array:
        x = heads(x)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned.astype(x.dtype)

    return rotated


@functools.cache
def _blank(architecture: Architecture, dtype: str) -> tuple[Any, Any]:
    """The model's graph, which tunix's config makes unhashable, and its params as `jax.ShapeDtypeStruct`."""
    from flax import nnx

    family = _FAMILIES[architecture.name]
    make = getattr(_tunix(family.module, "model"), family.model)
    config = _tunix_config(architecture, dtype)
    graph, state = nnx.split(nnx.eval_shape(lambda: make(config, rngs=nnx.Rngs(params=0))))
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=np.dtype(getattr(jnp, dtype)))
    return graph, jax.tree.map(lambda leaf: shape(leaf.shape), state.to_pure_dict())


def _tunix_config(architecture: Architecture, dtype: str) -> Any:
    family = _FAMILIES[architecture.name]
    same = ("num_layers", "vocab_size", "embed_dim", "hidden_dim", "num_heads", "num_kv_heads", "head_dim", "norm_eps")
    fields = {name: getattr(architecture, name) for name in (*same, "rope_theta")} | {family.tied: architecture.tied}
    if family.has_dtype:
        fields |= {"dtype": getattr(jnp, dtype), "param_dtype": getattr(jnp, dtype)}
    return _tunix(family.module, "model").ModelConfig(**fields)


def _tunix(module: str, part: str) -> Any:
    try:
        return importlib.import_module(f"tunix.models.{module}.{part}")
    except ImportError as error:
        raise ImportError(
            f"load_model needs google-tunix, and importing it failed ({error}): pip install google-tunix. Nothing else "
            "in statelesschat needs it"
        ) from error


@contextlib.contextmanager
def _rules_of_tunix() -> Iterator[None]:
    """It relies on promotion, and on what flax and jax have deprecated."""
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield

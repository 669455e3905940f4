"""The reference model: a small decoder-only transformer in flax nnx, to learn and to test with."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from statelesschat.core.config import Static
from statelesschat.envs.env import Bound
from statelesschat.policies.model import Model

if TYPE_CHECKING:
    from statelesschat.policies.model import Cache


@dataclasses.dataclass(frozen=True, eq=False)
class TransformerConfig(Static):
    """Sizes of a `Transformer`."""

    vocab_size: int  # V
    num_layers: int = 2
    width: int = 64  # of the residual stream
    num_heads: int = 4
    mlp_width: int = 256
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        """Refuse sizes that do not go together."""
        for name in ("vocab_size", "num_layers", "width", "num_heads", "mlp_width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}; give a whole number from 1 on")
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width={self.width} with num_heads={self.num_heads}: rotary positions need heads of an even width; "
                f"give a width that is a multiple of {2 * self.num_heads}"
            )


class Transformer(nnx.Module):
    """Pre-norm decoder: rotary positions, normalised queries and keys, gated MLPs, an untied output.

    Sources: RMSNorm (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), SwiGLU (Shazeer, 2020), the norm of
    queries and keys as in Qwen3 (2025).
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        init = functools.partial(nnx.initializers.variance_scaling, mode="fan_in", distribution="normal")
        inner = 1 / (2 * config.num_layers)  # what is added to the residual stream, so that its variance stays near 1
        # Small, so that what the first layer adds is not drowned: with unit variance learning took thrice as long.
        embedding = nnx.initializers.normal(config.width**-0.5)
        self.embed = nnx.Embed(config.vocab_size, config.width, embedding_init=embedding, rngs=rngs)
        self.layers = nnx.List([_Layer(config, init(1.0), init(inner), rngs) for _ in range(config.num_layers)])
        self.norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.unembed = nnx.Linear(
            config.width, config.vocab_size, use_bias=False, kernel_init=init(1e-4), rngs=rngs
        )  # nearly uniform at first

    def __call__(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], cache: "Cache | None" = None
    ) -> tuple[Float[Array, "B T V"], "Cache | None"]:
        """Logits of the next id, float32, and the cache with these ids in it; see `Model.apply`."""
        x = self.embed(tokens)
        slots = positions if cache is None else jnp.arange(cache[0][0].shape[2], dtype=jnp.int32)[None]
        mask = (slots[:, None, :] <= positions[:, :, None])[:, None]  # [B, 1, T, S]
        after = []
        for index, layer in enumerate(self.layers):
            x, kept = layer(x, positions, mask, None if cache is None else cache[index])
            after.append(kept)
        return self.unembed(self.norm(x)), None if cache is None else tuple(after)


class _Layer(nnx.Module):
    def __init__(self, config: TransformerConfig, init: Any, init_out: Any, rngs: nnx.Rngs) -> None:
        self.heads, self.theta = config.num_heads, config.rope_theta
        width, linear = config.width, functools.partial(nnx.Linear, use_bias=False, rngs=rngs)
        self.attention_norm = nnx.RMSNorm(width, rngs=rngs)
        self.qkv = linear(width, 3 * width, kernel_init=init)
        self.query_norm = nnx.RMSNorm(width // self.heads, rngs=rngs)
        self.key_norm = nnx.RMSNorm(width // self.heads, rngs=rngs)
        self.out = linear(width, width, kernel_init=init_out)
        self.mlp_norm = nnx.RMSNorm(width, rngs=rngs)
        self.gate = linear(width, config.mlp_width, kernel_init=init)
        self.up = linear(width, config.mlp_width, kernel_init=init)
        self.down = linear(config.mlp_width, width, kernel_init=init_out)

    def __call__(self, x: Array, positions: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = jnp.transpose(self.qkv(self.attention_norm(x)).reshape(split), (2, 0, 3, 1, 4))
        query = _rotated(self.query_norm(query), positions, self.theta)
        key = _rotated(self.key_norm(key), positions, self.theta)
        if cache is not None:
            rows = jnp.arange(batch, dtype=jnp.int32)[:, None, None]
            heads = jnp.arange(self.heads, dtype=jnp.int32)[None, :, None]
            # Slots beyond the end are dropped: nothing real is fed there.
            where = rows, heads, positions[:, None, :]
            cache = tuple(old.at[where].set(new, mode="drop") for old, new in zip(cache, (key, value)))
            key, value = cache
        # With the heads before the slots these are batched matrix products as they lie: on a CPU nine times as fast, at
        # one query to a row, as with slots first.
        scores = jnp.einsum("bhtk,bhsk->bhts", query, key) * jnp.float32(query.shape[-1] ** -0.5)
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.float32(-jnp.inf)), axis=-1)
        attended = jnp.einsum("bhts,bhsk->bthk", weights, value)
        x = x + self.out(attended.reshape(x.shape))
        h = self.mlp_norm(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h)), cache


def _rotated(x: Float[Array, "B H T K"], positions: Int[Array, "B T"], theta: float) -> Float[Array, "B H T K"]:
    half = x.shape[-1] // 2
    frequencies = jnp.float32(theta) ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[:, None, :, None] * frequencies[None, None, None, :]
    sine, cosine = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def transformer(config: TransformerConfig) -> Model:
    """The reference transformer as a `Model`; `init_params` makes its params.

    Example:
        >>> import jax, numpy as np
        >>> config = TransformerConfig(vocab_size=259)
        >>> model, params = transformer(config), init_params(config, jax.random.key(0))
        >>> tokens = np.arange(6, dtype=np.int32).reshape(2, 3)
        >>> positions = np.broadcast_to(np.arange(3, dtype=np.int32), (2, 3))
        >>> logits, _ = model.apply(params, tokens, positions, None)
        >>> logits.shape
        (2, 3, 259)
    """
    _, abstract = _split(config)
    return Model(Bound(_apply, (config,)), Bound(_init_cache, (config,)), config.vocab_size, abstract)


def init_params(config: TransformerConfig, key: PRNGKeyArray) -> nnx.State:
    """Random params of a `transformer`, float32, as flax nnx keeps them. Pure; under jit too."""
    return nnx.split(Transformer(config, rngs=nnx.Rngs(key)))[1]


def num_params(params: Any) -> int:
    """How many numbers the params are."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@functools.cache
def _split(config: TransformerConfig) -> tuple[Any, Any]:
    graph, state = nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))
    return graph, state


def _apply(config: TransformerConfig, params: Any, tokens: Array, positions: Array, cache: Any) -> tuple[Array, Any]:
    return nnx.merge(_split(config)[0], params)(tokens, positions, cache)


def _init_cache(config: TransformerConfig, batch: int, slots: int) -> tuple[tuple[Array, Array], ...]:
    shape = (batch, config.num_heads, slots, config.width // config.num_heads)
    return tuple((jnp.zeros(shape), jnp.zeros(shape)) for _ in range(config.num_layers))

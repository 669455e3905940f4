"""What a folder of a pretrained model holds, checked before a weight is read: its config and its safetensors files."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statelesschat.core.config import Static

CONFIGS = {"Qwen2ForCausalLM": "Qwen2Config", "Qwen3ForCausalLM": "Qwen3Config", "LlamaForCausalLM": "LlamaConfig"}
_FLOATS = ("BF16", "F16", "F32", "F64")  # as safetensors names them
_SHOWN = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Architecture(Static):
    """A config.json as constants of jit."""

    name: str  # a key of CONFIGS
    num_layers: int
    vocab_size: int  # V
    embed_dim: int
    hidden_dim: int  # of the MLPs
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tied: bool  # whether the output is the embedding
    rope_theta: float
    frequencies: tuple[float, ...]  # radians per position, [head_dim / 2]; rope_theta and scaling are in them


def read_architecture(folder: Path) -> Architecture:
    """What config.json says.

    Raises:
        FileNotFoundError: no such folder, or no config.json in it.
        ValueError: it is no config, of another architecture, or asks for what is not computed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(folder)!r}. Nothing is downloaded here: get a model of the Hugging Face hub with "
            "`hf download NAME --local-dir FOLDER` and give that folder"
        )
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"there is no config.json in {str(folder)!r}; give a folder that save_pretrained wrote")
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        names = said.get("architectures") or []
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} is no config of transformers: {error}") from error
    if len(names) != 1 or names[0] not in CONFIGS:
        raise ValueError(f"{file} has architectures={names}; these can be loaded: {', '.join(CONFIGS)}, one at a time")
    config = _parsed(file, said, names[0])
    _refuse(file, said, config, names[0])
    head_dim = _head_dim(config)
    return Architecture(
        name=names[0],
        num_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        embed_dim=config.hidden_size,
        hidden_dim=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=float(config.rms_norm_eps),
        tied=bool(config.tie_word_embeddings),
        rope_theta=float(config.rope_parameters["rope_theta"]),
        frequencies=_frequencies(config.rope_parameters, head_dim),
    )


def _parsed(file: Path, said: dict[str, Any], name: str) -> Any:
    """The config as transformers reads it, which knows the older ways of writing one."""
    import transformers

    try:
        return getattr(transformers, CONFIGS[name]).from_dict(said)
    except Exception as error:  # its checks raise errors of many kinds
        raise ValueError(f"{file} is no {CONFIGS[name]} of transformers: {error}") from error


def _refuse(file: Path, said: dict[str, Any], config: Any, name: str) -> None:
    rope = config.rope_parameters
    ropes = ("default",) if name == "Qwen2ForCausalLM" else ("default", "llama3")
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, _head_dim(config)
    faults = (
        (
            said.get("quantization_config"),
            "its weights are quantised; load a checkpoint in float32, float16 or bfloat16",
        ),
        (said.get("num_experts") or said.get("num_local_experts"), "mixtures of experts are not computed"),
        (
            any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()),
            f"layers with a sliding window (sliding_window={config.to_dict().get('sliding_window')}) are not computed",
        ),
        (getattr(config, "attention_bias", False), "attention_bias=True is not computed"),
        (getattr(config, "mlp_bias", False), "mlp_bias=True is not computed"),
        (config.hidden_act != "silu", f"hidden_act={config.hidden_act!r} is not computed, only 'silu'"),
        (heads % kv_heads, f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}"),
        (head_dim % 2, f"head_dim={head_dim}: rotary positions need an even one"),
        (
            rope["rope_type"] not in ropes,
            f"rope_type={rope['rope_type']!r} is not computed, only {' and '.join(ropes)}",
        ),
        (
            rope.get("partial_rotary_factor", 1.0) != 1.0,
            f"partial_rotary_factor={rope.get('partial_rotary_factor')} is not computed: whole heads are rotated",
        ),
    )
    for wrong, told in faults:
        if wrong:
            raise ValueError(f"{file} ({name}): {told}")


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _frequencies(rope: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    """Radians per position; in float32, since that is how the models were trained."""
    plain = np.float32(1) / np.float32(rope["rope_theta"]) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        rotations = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
        kept = np.clip((rotations - low) / (high - low), 0, 1)
        plain = plain * ((1 - kept) / rope["factor"] + kept)
    return tuple(plain.astype(np.float32).tolist())


class _Stored(NamedTuple):
    file: Path
    shape: tuple[int, ...]
    dtype: str


def check_weights(folder: Path, architecture: Architecture) -> bool:
    """Hold the safetensors files of a folder against its config.

    Returns:
        Whether one of the files has weights of more than one dtype.

    Raises:
        FileNotFoundError: no such files.
        ValueError: weights that are missing, unknown, twice there, of another shape or not of floats; an output that
            is not the embedding though the config says so; a file that cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"there is no *.safetensors in {str(folder)!r}; transformers writes them: model.save_pretrained(folder)"
        )
    stored: dict[str, _Stored] = {}
    for file in files:
        for name, weight in _read_header(file).items():
            if name in stored:
                raise ValueError(f"{name} is both in {stored[name].file} and in {file}; leave one of them there")
            stored[name] = weight
    dtypes = {(weight.file, weight.dtype) for weight in stored.values()}
    shapes = _shapes(architecture)
    known = {name: weight for name, weight in stored.items() if not name.endswith(".rotary_emb.inv_freq")}
    if architecture.tied and "lm_head.weight" in known:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    missing, unknown = [n for n in shapes if n not in known], [n for n in known if n not in shapes]
    if missing or unknown:
        told = [f"{what} {_first(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise ValueError(
            f"{folder} {' and '.join(told)}: these are not all and only the weights of a {architecture.name} "
            f"with {architecture.num_layers} layers"
        )
    for name, shape in shapes.items():
        file, found, dtype = known[name]
        if dtype not in _FLOATS:
            raise ValueError(
                f"{name} in {file} is {dtype}, quantised; load a checkpoint in float32, float16 or bfloat16"
            )
        if found != shape:
            raise ValueError(f"{name} in {file} is {list(found)}, by config.json it is {list(shape)}")
    if "lm_head.weight" in known and architecture.tied:
        _check_tied(known["lm_head.weight"].file, known["model.embed_tokens.weight"].file)
    return len(dtypes) > len(files)


def _shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """What transformers calls the weights, and their shapes."""
    a = architecture
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    layer = {
        "input_layernorm.weight": (a.embed_dim,),
        "self_attn.q_proj.weight": (queries, a.embed_dim),
        "self_attn.k_proj.weight": (keys, a.embed_dim),
        "self_attn.v_proj.weight": (keys, a.embed_dim),
        "self_attn.o_proj.weight": (a.embed_dim, queries),
        "post_attention_layernorm.weight": (a.embed_dim,),
        "mlp.gate_proj.weight": (a.hidden_dim, a.embed_dim),
        "mlp.up_proj.weight": (a.hidden_dim, a.embed_dim),
        "mlp.down_proj.weight": (a.embed_dim, a.hidden_dim),
    }
    if a.name == "Qwen2ForCausalLM":
        layer |= {f"self_attn.{part}_proj.bias": (size,) for part, size in zip("qkv", (queries, keys, keys))}
    if a.name == "Qwen3ForCausalLM":
        layer |= {f"self_attn.{part}_norm.weight": (a.head_dim,) for part in "qk"}
    shapes = {"model.embed_tokens.weight": (a.vocab_size, a.embed_dim), "model.norm.weight": (a.embed_dim,)}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(a.num_layers) for name, shape in layer.items()}
    return shapes if a.tied else shapes | {"lm_head.weight": (a.vocab_size, a.embed_dim)}


def _read_header(file: Path) -> dict[str, _Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return {n: _Stored(file, tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read, it may be cut short ({error}); get it anew") from error


def _check_tied(output: Path, embedding: Path) -> None:
    from safetensors import safe_open

    with safe_open(output, "numpy") as first, safe_open(embedding, "numpy") as second:
        if not np.array_equal(first.get_tensor("lm_head.weight"), second.get_tensor("model.embed_tokens.weight")):
            raise ValueError(
                f"{output} has a lm_head.weight that is not the embedding, though config.json says "
                "tie_word_embeddings=true; set it to false, or remove that weight"
            )


def _first(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")

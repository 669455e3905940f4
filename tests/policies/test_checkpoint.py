"""What is refused, and how, before a weight is loaded; neither tunix nor torch is needed for it."""

import json
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from statelesschat.policies.checkpoint import read_architecture
from statelesschat.policies.pretrained import load_model

_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
}
_LLAMA = {**_QWEN2, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_LAYER = {
    "input_layernorm.weight": (16,),
    "self_attn.q_proj.weight": (16, 16),
    "self_attn.q_proj.bias": (16,),
    "self_attn.k_proj.weight": (8, 16),
    "self_attn.k_proj.bias": (8,),
    "self_attn.v_proj.weight": (8, 16),
    "self_attn.v_proj.bias": (8,),
    "self_attn.o_proj.weight": (16, 16),
    "post_attention_layernorm.weight": (16,),
    "mlp.gate_proj.weight": (24, 16),
    "mlp.up_proj.weight": (24, 16),
    "mlp.down_proj.weight": (16, 24),
}
_SHAPES = {"model.embed_tokens.weight": (40, 16), "model.norm.weight": (16,)} | {
    f"model.layers.0.{name}": shape for name, shape in _LAYER.items()
}
_Q = "model.layers.0.self_attn.q_proj.weight"


def write(folder, config=_QWEN2, **weights):
    """A checkpoint of one layer; a weight given as None is left out."""
    weights = {name: np.ones(shape, np.float32) for name, shape in _SHAPES.items()} | weights
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value for name, value in weights.items() if value is not None}, folder / "model.safetensors")
    return folder


def refused(folder, *told, error=ValueError, **options):
    with pytest.raises(error) as caught:
        load_model(folder, **options)
    for words in told:
        assert words in str(caught.value)


def test_folders_without_what_is_needed(tmp_path):
    refused(tmp_path / "none", "there is no folder", "hf download", error=FileNotFoundError)
    refused("Qwen/Qwen3-0.6B", "Nothing is downloaded here", error=FileNotFoundError)
    refused(tmp_path, "no config.json", error=FileNotFoundError)
    (tmp_path / "config.json").write_text(json.dumps(_QWEN2))
    refused(tmp_path, "no *.safetensors", error=FileNotFoundError)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_what_is_no_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    refused(tmp_path, "is no config of transformers")


@pytest.mark.parametrize("dtype", [None, "float16", np.int32, "nonsense", "float64"])
def test_dtypes(tmp_path, dtype):
    refused(tmp_path, "give float32 or bfloat16", dtype=dtype)


@pytest.mark.parametrize(
    "names", [["Gemma3ForCausalLM"], ["Qwen3MoeForCausalLM"], ["MixtralForCausalLM"], [], None, ["Qwen2Model"]]
)
def test_other_architectures(tmp_path, names):
    write(tmp_path, {**_QWEN2, "architectures": names})
    refused(tmp_path, str(names or []), "Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (_QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "sliding_window=8"),
        (_QWEN2 | {"layer_types": ["sliding_attention"]}, "sliding window"),
        (_QWEN2 | {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
        (_QWEN2 | {"num_experts": 8}, "experts"),
        (_QWEN2 | {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        (_QWEN2 | {"num_key_value_heads": 3}, "num_key_value_heads=3"),
        (_QWEN2 | {"hidden_size": 12}, "head_dim=3"),
        (_QWEN2 | {"num_attention_heads": "four"}, "Qwen2Config"),
        (_LLAMA | {"attention_bias": True}, "attention_bias=True"),
        (_LLAMA | {"mlp_bias": True}, "mlp_bias=True"),
        (_QWEN2 | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}}, "rope_type='linear'"),
        (_LLAMA | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        (_QWEN2 | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "rope_type='dynamic'"),
        (
            _LLAMA | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor=0.5",
        ),
    ],
)
def test_what_is_not_computed(tmp_path, config, told):
    write(tmp_path, config)
    refused(tmp_path, told, str(tmp_path / "config.json"))


def test_weights_that_are_not_all_and_only_the_models(tmp_path):
    write(tmp_path, **{_Q: None})
    refused(tmp_path, f"lacks {_Q}", "1 layers")
    write(tmp_path, **{"model.layers.0.self_attn.q_proj.weight_scale": np.ones(1, np.float32)})
    refused(tmp_path, f"has unknown {_Q}_scale")
    write(tmp_path, _QWEN2 | {"num_hidden_layers": 2})
    refused(tmp_path, "lacks model.layers.1.input_layernorm.weight", "and 9 more")
    write(tmp_path, _QWEN2 | {"tie_word_embeddings": False})
    refused(tmp_path, "lacks lm_head.weight")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (_QWEN2 | {"vocab_size": 41}, "model.embed_tokens.weight"),
        (_QWEN2 | {"num_key_value_heads": 4}, "k_proj.weight"),
        (_QWEN2 | {"intermediate_size": 32}, "gate_proj.weight"),
    ],
)
def test_weights_of_other_shapes(tmp_path, config, told):
    write(tmp_path, config)
    refused(tmp_path, told, "by config.json it is")


def test_a_weight_that_was_turned_is_told(tmp_path):
    write(tmp_path, **{"model.layers.0.mlp.up_proj.weight": np.ones((16, 24), np.float32)})
    refused(tmp_path, "up_proj.weight", "is [16, 24], by config.json it is [24, 16]")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn])
def test_weights_that_are_not_of_floats(tmp_path, dtype):
    write(tmp_path, **{_Q: np.ones((16, 16), dtype)})
    refused(tmp_path, _Q, "quantised")


def test_a_file_that_is_cut_short(tmp_path):
    file = write(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    refused(tmp_path, str(file), "cut short")
    file.write_bytes(b"")
    refused(tmp_path, str(file), "cannot be read")


def test_a_weight_that_is_in_two_files(tmp_path):
    write(tmp_path)
    save_file({_Q: np.ones((16, 16), np.float32)}, tmp_path / "consolidated.safetensors")
    refused(tmp_path, _Q, "consolidated.safetensors", "model.safetensors")


def test_an_output_that_is_not_the_embedding_it_is_said_to_be(tmp_path):
    write(tmp_path, **{"lm_head.weight": np.zeros((40, 16), np.float32)})
    refused(tmp_path, "tie_word_embeddings")


def test_without_tunix(tmp_path, monkeypatch):
    for name in ("tunix", "tunix.models.qwen2.model", "tunix.models.qwen2.params"):
        monkeypatch.setitem(sys.modules, name, None)
    write(tmp_path, **{"lm_head.weight": np.ones((40, 16), np.float32)})  # the embedding once more is fine
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)  # as old checkpoints have it
    save_file(weights, tmp_path / "model.safetensors")
    refused(tmp_path, "pip install google-tunix", "Nothing else", error=ImportError)


def test_configs_as_they_were_written_before_transformers_5(tmp_path):
    qwen = {name: value for name, value in _QWEN2.items() if name != "rope_parameters"}
    qwen |= {"rope_theta": 1_000_000.0, "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 0}
    write(tmp_path, qwen)
    read = read_architecture(tmp_path)
    assert (read.rope_theta, read.head_dim, read.tied) == (1e6, 4, True)
    np.testing.assert_allclose(read.frequencies, [1, 1e-3], rtol=1e-6)

    scaling = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
    llama = {name: value for name, value in _LLAMA.items() if name != "rope_parameters"}
    llama |= {
        "rope_theta": 500_000.0,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rope_scaling": scaling | {"original_max_position_embeddings": 8192},
    }
    write(tmp_path, llama)
    read = read_architecture(tmp_path)
    plain = 500_000.0 ** (-np.arange(32) / 32)
    # Wavelengths below 8192 / 4 stay, those above 8192 / 1 are stretched by 32, and in between it goes smoothly.
    np.testing.assert_allclose(read.frequencies[:15], plain[:15], rtol=1e-6)
    np.testing.assert_allclose(read.frequencies[18:], plain[18:] / 32, rtol=1e-6)
    between = np.asarray(read.frequencies[15:18])
    assert np.all((between < plain[15:18]) & (between > plain[15:18] / 32))

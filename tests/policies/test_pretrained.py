"""Checkpoints that transformers writes, held against the logits that transformers computes with them."""

import pickle
import shutil
import warnings
from importlib import util

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from statelesschat.policies import check_params
from statelesschat.policies.pretrained import load_model

_LACKING = [name for name in ("tunix", "torch") if util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(_LACKING), reason=f"not installed: {', '.join(_LACKING)}")

_SIZES = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _rope(theta):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


CASES = {
    "qwen2-tied": ("Qwen2", _rope(1e6) | {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", _rope(100.0) | {"tie_word_embeddings": False, "rms_norm_eps": 1e-2}),
    "qwen3-tied": ("Qwen3", _rope(1e6) | {"tie_word_embeddings": True, "head_dim": 12}),
    "qwen3-untied": ("Qwen3", _rope(100.0) | {"tie_word_embeddings": False, "head_dim": 8, "num_key_value_heads": 1}),
    "llama-tied": ("Llama", _rope(1e4) | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama-untied": ("Llama", _rope(100.0) | {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "llama-scaled": ("Llama", {"rope_parameters": _SCALED, "tie_word_embeddings": False, "head_dim": 16}),
}
TOKENS = np.random.default_rng(0).integers(0, 53, (3, 40)).astype(np.int32)
POSITIONS = np.tile(np.arange(40, dtype=np.int32), (3, 1))


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """By name a folder and the logits that transformers computes of TOKENS with what is in it."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder, write(folder, *CASES[name])
        return made[name]

    return get


def write(folder, family, options, **saving):
    """A random checkpoint in which nothing is 0 or 1; returns its logits."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        config = getattr(transformers, f"{family}Config")(**_SIZES | options)
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.normal_(std=weight.shape[-1] ** -0.5 * 1.5 if weight.ndim > 1 else 0.5)
                if "norm" in name:
                    weight.add_(1.0)
            model.save_pretrained(folder, **saving)
            return model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


def full(model, params):
    return np.asarray(model.apply(params, TOKENS, POSITIONS, None)[0])


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name, checkpoints):
    folder, expected = checkpoints(name)
    model, params = load_model(folder)
    logits, cache = model.apply(params, TOKENS, POSITIONS, None)
    assert logits.dtype == jnp.float32 and cache is None and model.vocab_size == 53
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen2-untied", "qwen3-untied", "llama-scaled"])
def test_rows_are_fed_from_positions_of_their_own(name, checkpoints):
    folder, expected = checkpoints(name)
    model, params = load_model(folder)
    lengths, ends = np.array([23, 9, 2]), np.array([30, 40, 8])
    cache, seen = model.init_cache(3, 48), np.full_like(expected, np.nan)
    chex.assert_tree_shape_prefix(cache, (3, 48))
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=2)
    def feed(params, tokens, positions, cache):
        return model.apply(params, tokens, positions, cache)

    cached = np.zeros(3, int)
    while (cached < ends).any():
        # At first 5 at once, of which some lie behind a row's end; then one, where a row that has ended stays.
        begins = (cached < lengths).any()
        goal, width = (lengths, 5) if begins else (ends, 1)
        positions = cached[:, None] + np.arange(width)
        if not begins:
            positions = np.minimum(positions, ends[:, None] - 1)
        real = positions < goal[:, None]
        tokens = np.where(real, np.take_along_axis(TOKENS, np.minimum(positions, 39), axis=1), 52)
        logits, cache = feed(params, tokens.astype(np.int32), positions.astype(np.int32), cache)
        for row, step in zip(*np.nonzero(real)):
            seen[row, positions[row, step]] = logits[row, step]
        cached = np.minimum(cached + width, goal)
    for row, end in enumerate(ends):
        np.testing.assert_allclose(seen[row, :end], expected[row, :end], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen2-tied", "llama-scaled"])
def test_gradients_are_those_of_transformers(name, checkpoints):
    torch = pytest.importorskip("torch")
    folder, _ = checkpoints(name)
    model, params = load_model(folder)
    grads = jax.grad(lambda params: jnp.mean(model.apply(params, TOKENS, POSITIONS, None)[0] ** 2))(params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (reference(torch.tensor(TOKENS, dtype=torch.long)).logits ** 2).mean().backward()
    expected = reference.get_input_embeddings().weight.grad.numpy()
    np.testing.assert_allclose(grads["embedder"]["input_embedding"], expected, atol=1e-5, rtol=0)
    squares = sum(float(weight.grad.square().sum()) for weight in reference.parameters())
    np.testing.assert_allclose(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(grads)), squares, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3-untied", "llama-tied"])
def test_bfloat16(name, checkpoints):
    folder, expected = checkpoints(name)
    model, params = load_model(folder, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, model.init_cache(1, 4)))} == {jnp.dtype(jnp.bfloat16)}
    cached, cache = model.apply(params, TOKENS, POSITIONS, model.init_cache(3, 40))
    assert cached.dtype == jnp.float32 and {leaf.dtype for leaf in jax.tree.leaves(cache)} == {jnp.dtype(jnp.bfloat16)}
    for logits in (full(model, params), cached):
        assert logits.dtype == jnp.float32
        assert np.abs(logits - expected).mean() < 0.03 * expected.std()


def test_what_reaches_beyond_the_cache_is_refused_where_that_is_known(checkpoints):
    model, params = load_model(checkpoints("llama-tied")[0])
    with pytest.raises(ValueError, match="40 ids are fed to a cache of 39 slots"):
        model.apply(params, TOKENS, POSITIONS, model.init_cache(3, 39))


def test_checkpoints_in_several_files(tmp_path):
    expected = write(tmp_path, *CASES["qwen3-untied"], max_shard_size="10KB")
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    np.testing.assert_allclose(full(*load_model(tmp_path)), expected, atol=1e-4, rtol=0)
    files[0].unlink()
    with pytest.raises(ValueError, match="lacks"):
        load_model(tmp_path)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_files_with_weights_of_several_dtypes(dtype, checkpoints, tmp_path):
    folder, _ = checkpoints("qwen2-untied")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    halved = {name: value if "norm" in name else value.astype(dtype) for name, value in weights.items()}
    save_file({name: value.astype(np.float32) for name, value in halved.items()}, tmp_path / "model.safetensors")
    expected = full(*load_model(tmp_path))
    save_file(halved, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(full(*load_model(tmp_path)), expected)


def test_an_embedding_that_is_written_again_as_output(checkpoints, tmp_path):
    folder, expected = checkpoints("llama-tied")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    save_file(weights, tmp_path / "model.safetensors")
    np.testing.assert_allclose(full(*load_model(tmp_path)), expected, atol=1e-4, rtol=0)


def test_equal_configs_give_equal_models(checkpoints, tmp_path):
    folder, expected = checkpoints("llama-tied")
    (first, params), (second, _), (half, _) = (
        load_model(folder),
        load_model(folder),
        load_model(folder, dtype="bfloat16"),
    )
    assert first == second and hash(first) == hash(second) and first != half
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    np.testing.assert_allclose(full(again, params), expected, atol=1e-4, rtol=0)
    family, options = CASES["llama-tied"]
    write(tmp_path, family, options | _rope(2e4))
    assert load_model(tmp_path)[0] != first


def test_params_of_another_model_are_told(checkpoints):
    model, params = load_model(checkpoints("qwen2-tied")[0])
    check_params(model, params)
    with pytest.raises(ValueError, match="lm_head"):
        check_params(model, load_model(checkpoints("qwen2-untied")[0])[1])
    with pytest.raises(ValueError, match="bfloat16"):
        check_params(model, load_model(checkpoints("qwen2-tied")[0], dtype="bfloat16")[1])

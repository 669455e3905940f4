"""TorchRL's ChatEnv in tokens mode, driven by Hugging Face's `generate` with weights that were left in a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, set_list_to_stack
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm.policies.common import Tokens
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from field import work
from field.contest import Contestant


def contestants(folder: str) -> dict[str, Contestant]:
    """The one there is."""
    set_list_to_stack(True).set()
    return {"generate": Generate(Path(folder))}


class Generate(Contestant):
    """Each turn: generate on the whole prompt, its cache kept within the turn; join the reply; step."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "about.json").read_text())
        self.folder, self.turns, self.answer = folder, about["turns"], about["answer"]
        self.model = _model(about["shape"], np.load(folder / "weights.npz"))
        self.prompts = torch.from_numpy(np.load(folder / "prompts.npy").astype(np.int64))
        self.reply = torch.from_numpy(np.load(folder / "reply.npy").astype(np.int64)).expand(len(self.prompts), -1)
        batch = len(self.prompts)
        self.env = ChatEnv(input_mode="tokens", batch_size=(batch,), tokenizer=work.load_tokenizer())
        self.first = self.env.reset(TensorDict({"query": ["?"] * batch}, batch_size=(batch,)))
        self.first.set("tokens", Tokens(prompt=self.prompts, batch_size=(batch,)))
        self.options = GenerationConfig(
            max_new_tokens=self.answer,
            do_sample=False,
            suppress_tokens=about["stops"],
            pad_token_id=0,
            eos_token_id=None,
            use_cache=True,
        )

    def prepare(self) -> None:
        """Back to the first prompt."""
        self.state = self.first.clone()

    def run(self) -> None:
        """All turns."""
        state = self.state
        for _ in range(self.turns):
            prompt = state["tokens"].prompt
            with torch.inference_mode():
                full = self.model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), generation_config=self.options
                )
            full = torch.cat([full, self.reply], -1)
            state.set("tokens", Tokens(full=full, batch_size=(len(full),)))
            state = self.env.step(state)["next"]
        self.prompt = state["tokens"].prompt

    def check(self) -> None:
        """Every row has every id; they are left for the one who compares."""
        each = self.answer + self.reply.shape[1]
        assert self.prompt.shape == (len(self.prompts), self.prompts.shape[1] + self.turns * each)
        np.save(self.folder / "told.npy", self.prompt.numpy())


def _model(shape: dict[str, Any], weights: Any) -> Qwen3ForCausalLM:
    """The reference transformer's weights in Qwen3's architecture: the same layers, under other names."""
    heads, width = shape["num_heads"], shape["width"]
    config = Qwen3Config(
        vocab_size=shape["vocab_size"],
        hidden_size=width,
        intermediate_size=shape["mlp_width"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width // heads,
        rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]},
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        put = lambda into, value: into.copy_(torch.from_numpy(np.array(value)))  # noqa: E731
        at = lambda name: weights[f"{name}.value"]  # noqa: E731
        put(model.model.embed_tokens.weight, at("['embed']['embedding']"))
        put(model.model.norm.weight, at("['norm']['scale']"))
        put(model.lm_head.weight, at("['unembed']['kernel']").T)
        for index, layer in enumerate(model.model.layers):
            of = lambda name, index=index: at(f"['layers'][{index}]{name}")  # noqa: E731
            query, key, value = np.split(of("['qkv']['kernel']"), 3, axis=1)
            put(layer.self_attn.q_proj.weight, query.T)
            put(layer.self_attn.k_proj.weight, key.T)
            put(layer.self_attn.v_proj.weight, value.T)
            put(layer.self_attn.o_proj.weight, of("['out']['kernel']").T)
            put(layer.self_attn.q_norm.weight, of("['query_norm']['scale']"))
            put(layer.self_attn.k_norm.weight, of("['key_norm']['scale']"))
            put(layer.mlp.gate_proj.weight, of("['gate']['kernel']").T)
            put(layer.mlp.up_proj.weight, of("['up']['kernel']").T)
            put(layer.mlp.down_proj.weight, of("['down']['kernel']").T)
            put(layer.input_layernorm.weight, of("['attention_norm']['scale']"))
            put(layer.post_attention_layernorm.weight, of("['mlp_norm']['scale']"))
    return model

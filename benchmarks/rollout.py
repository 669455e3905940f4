"""What a rollout costs: outside the model, with the cache kept, beside generate. Prints JSON lines.

    python benchmarks/rollout.py [--rounds 5] [--batch 64] [--only outside cache peers bytes]

outside: the share of a rollout's time that is not the model's: 4 turns of 32 sampled ids and a 32-id reply, 10 million
    params. The model alone is fed the same ids in the same shapes, and its likeliest id is fed next.
cache: 8 turns after prompts of 256 ids, with the cache kept from turn to turn and with every turn's prompt fed anew.
peers: 8 turns of 32 greedy ids each, against TorchRL's ChatEnv driven by Hugging Face's `generate` with the same
    weights (Qwen3's architecture has the same layers), in a process of its own. What both wrote is compared.
bytes: of one conversation on device: its state, and the sampler's cache.

The things compared take turns, round by round; a figure is the median over the rounds of the ratio within a round. Runs
unchanged on CPU, GPU and TPU (peers are left out where torch is missing: `pip install -e '.[bench,train]'`).
"""

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from field.contest import Process, serve
from jax.tree_util import Partial

import statelesschat as sc
from statelesschat.data import from_iterable
from statelesschat.policies import (
    GREEDY,
    Model,
    Sampler,
    TransformerConfig,
    init_params,
    num_params,
    sampler,
    transformer,
)

ANSWER, REPLY = 32, 32  # ids of each turn
SIZES = {
    "10M": TransformerConfig(259, num_layers=9, width=256, num_heads=8, mlp_width=1024),
    "1M": TransformerConfig(259, num_layers=4, width=128, num_heads=4, mlp_width=512),
    "100k": TransformerConfig(259, num_layers=2, width=64, num_heads=4, mlp_width=256),
}
NEVER = -1e9


class Talk:
    """Conversations in which answers of 32 ids and replies of 32 take turns, and a model that never ends one early."""

    def __init__(self, size: str, batch: int, turns: int, prompt: int) -> None:
        self.shape, self.batch, self.turns = SIZES[size], batch, turns
        tokenizer = sc.load_tokenizer(None)
        config = sc.make_config(
            tokenizer,
            capacity=prompt + turns * (ANSWER + REPLY),
            max_messages=2 * turns + 2,
            max_message_len=REPLY + 1,
            max_prompt_len=prompt,
            max_response_len=ANSWER,
            max_turns=turns + 1,
            store_logprobs=True,
        )
        codec = sc.Codec(tokenizer, config)
        opened = int(codec.encode([""]).length[0])
        # The stop id that an answer without one is closed with counts to the reply.
        around = int(codec.encode_messages("user", [""]).length[0]) + len(config.template.closing_ids)
        letters = "abcdefghijklmnopqrstuvwxyz"
        prompts = ["".join(letters[(7 * row + 3 * i) % 26] for i in range(prompt - opened)) for row in range(batch)]
        block = codec.encode_messages("user", ["r" * (REPLY - around)])
        message = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), block)
        self.env = sc.with_reply(sc.chat_env(config), Partial(_reply, message))
        self.states = sc.begin(self.env, from_iterable(prompts, codec), 0)
        self.config, plain = config, transformer(self.shape)
        assert set(self.states.chat.length.tolist()) == {prompt}
        self.stops = config.template.stop_ids
        self.slots = tuple(range(128, config.capacity, 128))
        self.model = Model(Partial(_endless, plain, self.stops), plain.init_cache, plain.vocab_size)
        # Far from uniform, so that what is likeliest depends on what was read, and rounding does not decide it.
        self.params = jax.tree.map_with_path(
            lambda path, leaf: leaf * np.float32(300) if "unembed" in jax.tree_util.keystr(path) else leaf,
            init_params(self.shape, jax.random.key(0)),
        )

    def rollout(self, policy: Sampler) -> Callable[[], sc.EnvState]:
        """All turns as one compiled program."""
        run = jax.jit(sc.rollout, static_argnames="num_turns")
        arguments = self.env, policy, self.params, self.states, jax.random.key(1)
        compiled = run.lower(*arguments, num_turns=self.turns).compile()
        length = int(self.states.chat.length[0]) + self.turns * (ANSWER + REPLY)

        def go() -> sc.EnvState:
            states = jax.block_until_ready(compiled(*arguments))[0]
            assert set(states.chat.length.tolist()) == {length}, states.chat.length
            return states

        return go


def _reply(message: sc.Message, state: sc.ChatState, action: sc.Action) -> tuple[sc.Message, jax.Array]:
    return message, jnp.bool_(True)


def _endless(model: Model, stops: tuple[int, ...], params: Any, tokens: Any, positions: Any, cache: Any) -> Any:
    logits, cache = model.apply(params, tokens, positions, cache)
    return logits.at[..., jnp.asarray(stops)].set(NEVER), cache


def outside(rounds: int, batch: int) -> Iterator[dict[str, Any]]:
    """Share of a rollout's time outside the model, and that of the environment alone."""
    prompt = 64
    talk = Talk("10M", batch, turns=4, prompt=prompt)
    policy = sampler(talk.model, talk.config)
    whole = talk.rollout(policy)
    width = 64  # of a chunk, as the sampler's: the longest of prompt and message

    @jax.jit
    def model_alone(params: Any, tokens: Any) -> Any:
        cache = talk.model.init_cache(batch, talk.config.capacity)

        def turn(carry: Any, start: Any) -> tuple[Any, None]:
            cache, tokens = carry
            fed = jnp.maximum(start - width, 0) + jnp.arange(width, dtype=jnp.int32)
            positions = jnp.broadcast_to(fed, (batch, width))
            _, cache = talk.model.apply(params, tokens[:, :width], positions, cache)

            def sample(step: Any, carry: Any) -> Any:
                token, cache = carry
                positions = jnp.broadcast_to(start + step, (batch, 1)).astype(jnp.int32)
                logits, cache = talk.model.apply(params, token, positions, cache)
                return jnp.argmax(logits[:, :, : talk.config.template.vocab_size], -1).astype(jnp.int32), cache

            _, cache = jax.lax.fori_loop(0, ANSWER, sample, (tokens[:, :1], cache))
            return (cache, tokens), None

        starts = prompt - 1 + (ANSWER + REPLY) * jnp.arange(talk.turns, dtype=jnp.int32)
        (cache, _), _ = jax.lax.scan(turn, (cache, tokens), starts)
        return jax.tree.map(lambda leaf: leaf[0, 0, 0, 0], cache)

    action = sc.Action(
        jnp.full((batch, ANSWER), 65, jnp.int32), jnp.full(batch, ANSWER, jnp.int32),
        jnp.zeros((batch, ANSWER), jnp.float32), jnp.ones(batch, bool),
    )  # fmt: skip
    repeats = 50

    @jax.jit
    def env_alone(states: sc.EnvState, action: sc.Action) -> Any:
        def again(states: sc.EnvState, _: None) -> tuple[sc.EnvState, None]:
            after, _ = jax.lax.scan(lambda s, _: (jax.vmap(talk.env.step)(s, action), None), states, length=talk.turns)
            chat = dataclasses.replace(after.chat, counts=states.chat.counts)
            return dataclasses.replace(after, chat=chat), None

        return jax.lax.scan(again, states, length=repeats)[0].chat.tokens[0]

    runs = {
        "rollout": whole,
        "model": lambda: jax.block_until_ready(model_alone(talk.params, talk.states.chat.tokens)),
        "env": lambda: jax.block_until_ready(env_alone(talk.states, action)),
    }
    seconds = take_turns(runs, rounds)
    yield {
        "benchmark": "outside",
        "params": num_params(talk.params),
        "batch": batch,
        "outside_the_model": statistics.median(1 - m / r for m, r in zip(seconds["model"], seconds["rollout"])),
        "environment": statistics.median(e / repeats / r for e, r in zip(seconds["env"], seconds["rollout"])),
        "rollout_s": statistics.median(seconds["rollout"]),
        "tokens_per_s": batch * talk.turns * ANSWER / statistics.median(seconds["rollout"]),
    }


def cache(rounds: int, batch: int) -> Iterator[dict[str, Any]]:
    """Tokens a second of eight turns, the cache kept, over feeding every prompt from its beginning."""
    talk = Talk("10M", batch, turns=8, prompt=256)
    kept, anew = (sampler(talk.model, talk.config, GREEDY, chunk=size, slots=talk.slots) for size in (REPLY, 128))
    act = Partial(_forgetting, anew.act)
    runs = {"kept": talk.rollout(kept), "anew": talk.rollout(anew._replace(act=act))}
    told = {name: run().chat.tokens for name, run in runs.items()}
    seconds = take_turns(runs, rounds)
    yield {
        "benchmark": "cache",
        "params": num_params(talk.params),
        "batch": batch,
        "turns": talk.turns,
        "times": statistics.median(b / a for a, b in zip(seconds["kept"], seconds["anew"])),
        "tokens_per_s": batch * talk.turns * ANSWER / statistics.median(seconds["kept"]),
        "same_ids": float(np.mean(np.asarray(told["kept"]) == np.asarray(told["anew"]))),
    }


def _forgetting(act: Any, params: Any, memory: Any, key: Any, states: sc.EnvState) -> Any:
    return act(params, memory._replace(cached=jnp.zeros_like(memory.cached)), key, states)


def peers(rounds: int, batch: int) -> Iterator[dict[str, Any]]:
    """Tokens a second over those of ChatEnv and generate, for a very small model and one of ten millions."""
    for size in ("100k", "1M", "10M"):
        talk = Talk(size, batch, turns=8, prompt=64)
        run = talk.rollout(sampler(talk.model, talk.config, GREEDY, chunk=REPLY, slots=talk.slots))
        written = np.asarray(run().chat.tokens)
        start = int(talk.states.chat.length[0])
        with tempfile.TemporaryDirectory() as folder:
            _leave(Path(folder), talk, written[:, start + ANSWER : start + ANSWER + REPLY])
            threads = {"OMP_NUM_THREADS": str(os.cpu_count() or 2)}
            process = Process(__file__, "generating", ["--folder", folder], threads)
            if process.missing:
                print(f"peers left out: there is no {process.missing}", flush=True)
                return
            runs = {"ours": run, "theirs": lambda p=process: p.seconds("generate")}
            seconds = take_turns(runs, rounds)
            process.close()
            told = np.load(Path(folder) / "told.npy")
        # Theirs gives seconds of one turn.
        theirs = [float(x) * talk.turns for x in seconds["theirs"]]
        yield {
            "benchmark": "peers",
            "params": num_params(talk.params),
            "batch": batch,
            "turns": talk.turns,
            "times": statistics.median(b / a for a, b in zip(seconds["ours"], theirs)),
            "tokens_per_s": batch * talk.turns * ANSWER / statistics.median(seconds["ours"]),
            "their_tokens_per_s": batch * talk.turns * ANSWER / statistics.median(theirs),
            "same_ids": float(np.mean(told == written[:, : told.shape[1]])),
            "versions": process.versions,
        }


def _leave(folder: Path, talk: Talk, reply: Any) -> None:
    """Weights, prompts and the reply's ids for the other process."""
    names = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(talk.params)}
    np.savez(folder / "weights.npz", **{name: np.asarray(leaf) for name, leaf in names.items()})
    np.save(
        folder / "prompts.npy", np.asarray(jax.vmap(sc.prompt)(talk.states.chat)[0])[:, : talk.config.max_prompt_len]
    )
    np.save(folder / "reply.npy", reply[0])
    about = {"shape": dataclasses.asdict(talk.shape), "answer": ANSWER, "turns": talk.turns, "stops": list(talk.stops)}
    (folder / "about.json").write_text(json.dumps(about))


def conversation_bytes() -> Iterator[dict[str, Any]]:
    """Bytes of a conversation of 4096 ids."""
    tokenizer = sc.load_tokenizer(None)
    for stored in (False, True):
        config = sc.make_config(
            tokenizer, capacity=4096, max_messages=64, max_message_len=512, max_turns=32, store_logprobs=stored
        )
        state = jax.eval_shape(partial(sc.init, config))
        cached = jax.eval_shape(partial(transformer(SIZES["10M"]).init_cache, 1, config.capacity))
        size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))  # noqa: E731
        yield {
            "benchmark": "bytes",
            "capacity": config.capacity,
            "logprobs": stored,
            "state": size(state),
            "state_per_id": size(state) / config.capacity,
            "cache_10M": size(cached),
        }


def take_turns(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Seconds of each, round by round, the first not counted. A number that is returned is taken as seconds."""
    seconds: dict[str, list[Any]] = {name: [] for name in runs}
    for number in range(-1, rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            told = run()
            spent = told if isinstance(told, float) else time.perf_counter() - start
            if number >= 0:
                seconds[name].append(spent)
    return seconds


def main() -> None:
    """Print every figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peer-batch", type=int, default=16, help="of cache and peers")
    parser.add_argument("--only", nargs="+", choices=("outside", "cache", "peers", "bytes"))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(f"field.{options.serve}", ["torchrl", "tensordict", "torch", "transformers"], options.folder)
        return
    device = jax.devices()[0]
    where = {"device": f"{device.platform}:{device.device_kind}", "cores": os.cpu_count(), "jax": jax.__version__}
    parts = {
        "bytes": conversation_bytes,
        "outside": partial(outside, options.rounds, options.batch),
        "cache": partial(cache, options.rounds, options.peer_batch),
        "peers": partial(peers, options.rounds, options.peer_batch),
    }
    for name, part in parts.items():
        if not options.only or name in options.only:
            for figure in part():
                print(json.dumps(where | figure), flush=True)


if __name__ == "__main__":
    main()

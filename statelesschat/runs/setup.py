"""What `train` trains: task, model and recipe, from a few options."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from statelesschat.core.types import Action
from statelesschat.data.rows import Table, take_rows
from statelesschat.envs.env import Env
from statelesschat.learn.recipe import Recipe
from statelesschat.policies.distribution import GREEDY
from statelesschat.policies.model import Model
from statelesschat.policies.sampler import Sampler
from statelesschat.policies.transformer import TransformerConfig, transformer
from statelesschat.runs.options import Options
from statelesschat.tasks import arithmetic
from statelesschat.text.codec import Codec
from statelesschat.text.tokenizer import load_tokenizer

# One letter for a role: what a tiny model does not read costs it no time.
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }}\n{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)
CHUNK = 10  # updates in one call of the compiled program
WARM_CHUNK = 10
_LIMITS = {
    "capacity": 58,
    "max_prompt_len": 28,
    "max_message_len": 28,
    "max_response_len": 5,
    "max_turns": 2,
    "max_messages": 4,
}
_WIDTHS = (28, 58)
_STEP = 64  # rows to a step of the optimiser, of which an update makes about four
_TRIES = 10  # in training one row in so many has a second try: later turns cost most of a rollout


class OptionError(ValueError):
    """An option that cannot be; the message says what can."""


class Setup(NamedTuple):
    """All that a run needs, made on the host."""

    env: Env
    table: Table
    held_out: Table
    codec: Codec
    model: Model
    shape: TransformerConfig
    recipe: Recipe
    warm_up: Recipe
    unseen: Table  # problems that are neither in the table nor, if there are enough, in held_out
    answers: Action  # the right answer to each row of the table
    greedy: Sampler
    problems: dict[str, list[str]]  # "train" and "held_out", as they are asked


def make_setup(options: Options) -> Setup:
    """Task, model and recipes.

    Raises:
        OptionError: for options that cannot be.
    """
    _check(options)
    tokenizer = load_tokenizer(None)
    chosen: dict[str, Any] = {"chat_template": _TEMPLATE, "system_prompt": None, "store_logprobs": True, **_LIMITS}
    most, count = options.max_operand, options.held_out
    try:
        problems = arithmetic.problems(None, "train", most, options.seed)
        # The same held-out problems whatever the seed, so that runs can be compared.
        held_out_problems = arithmetic.problems(count, "test", most, 0)
        number = len(arithmetic.problems(None, "test", most, 0))
    except ValueError as error:
        raise OptionError(str(error)) from None
    env, table = arithmetic.make(tokenizer, None, max_operand=most, seed=options.seed, **chosen)
    # As many more by which it is seen when imitation has done enough: others, as far as there are any.
    _, others = arithmetic.make(tokenizer, min(2 * count, number), split="test", max_operand=most, **chosen)
    held_out, unseen = (take_rows(others, (np.arange(count) + start) % others.length.shape[0]) for start in (0, count))
    # Every held-out problem has its second try.
    table = dataclasses.replace(table, turn_limit=jnp.where(table.info.row_id % _TRIES == 0, 2, 1))
    config = env.init(jax.tree.map(lambda leaf: leaf[0], table)).chat.config
    plain = Codec(tokenizer, dataclasses.replace(config, store_logprobs=False))
    shape = TransformerConfig(vocab_size=len(tokenizer), mlp_width=128)
    model = transformer(shape)
    sizes: dict[str, Any] = {"model": model, "config": config, "buckets": _WIDTHS}
    try:
        recipe = Recipe(
            optimizer=_optimizer(_rl_schedule(options.learning_rate, 4 * options.updates)),
            batch=options.batch,
            repeats=options.repeats,
            microbatch=_part(options.batch, _STEP),
            minibatch=_part(options.batch, _STEP),
            rows=_part(options.batch, 256),
            slots=(_WIDTHS[0],),
            chunk=26,  # as many ids as a second try brings
            loss="reinforce",
            baseline="group_ratio",
            negative=0.0,
            discount=0.0,  # each try is judged by itself
            **sizes,
        )
    except ValueError as error:
        raise OptionError(str(error)) from None
    warm_up = Recipe(optimizer=_optimizer(_warm_up_schedule(options.warm_up)), batch=128, baseline="none", **sizes)
    return Setup(
        env,
        table,
        held_out,
        Codec(tokenizer, config),
        model,
        shape,
        recipe,
        warm_up,
        unseen,
        plain.encode_actions([str(problem.answer) for problem in problems]),
        recipe.policy(GREEDY),
        {
            "train": [problem.question for problem in problems],
            "held_out": [problem.question for problem in held_out_problems],
        },
    )


def _optimizer(schedule: Any) -> Any:
    """Muon (Jordan et al., 2024) learned these problems in a third of the updates that Adam took."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.contrib.muon(schedule, adam_b2=0.98))


def _rl_schedule(rate: float, steps: int) -> Any:
    """Rising to its peak over a tenth of the optimiser's steps, falling from half of them on."""
    tenth, half = steps // 10, steps // 2
    parts = [
        optax.linear_schedule(0.6 * rate, rate, tenth),
        optax.constant_schedule(rate),
        optax.linear_schedule(rate, 0.05 * rate, steps - half),
    ]
    return optax.join_schedules(parts, [tenth, half])


def _warm_up_schedule(updates: int) -> Any:
    return optax.warmup_cosine_decay_schedule(0.0, 0.02, 50, max(updates, 51), 0.002)


def _part(batch: int, most: int) -> int:
    """Rows at once: at most so many, dividing the batch."""
    return next(size for size in range(min(most, batch), 0, -1) if batch % size == 0)


def _check(options: Options) -> None:
    if options.task != "arithmetic":
        raise OptionError(
            f"--task {options.task}: the small built-in model learns arithmetic; for other tasks and real models see "
            "statelesschat.learn.train"
        )
    if options.updates < 1 or options.updates % CHUNK:
        raise OptionError(f"--updates {options.updates}: give a multiple of {CHUNK}, the updates of one compiled call")
    if options.warm_up < 0 or options.warm_up % WARM_CHUNK:
        raise OptionError(f"--warm-up {options.warm_up}: give 0 or a multiple of {WARM_CHUNK}")
    if not 0 <= options.seed < 2**31:
        raise OptionError(f"--seed {options.seed}: give a whole number from 0 to {2**31 - 1}")

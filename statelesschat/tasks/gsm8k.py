"""GSM8K: grade-school word problems with a number for an answer, one turn.

Source: Cobbe et al. (2021), "Training Verifiers to Solve Math Word Problems", arXiv:2110.14168.
"""

from collections.abc import Mapping
from typing import Any

from jax.tree_util import Partial

from statelesschat.data.rows import Table
from statelesschat.envs.combinators import with_reward, with_stop
from statelesschat.envs.env import Env, chat_env
from statelesschat.rewards.tokens import TokenBytes
from statelesschat.tasks.judging import numeric_reward
from statelesschat.tasks.task import Task, assemble, codec_for, gold_numbers, text_at
from statelesschat.text.codec import Codec

SYSTEM_PROMPT = "Solve the problem step by step. Give the final answer as a number on a last line of its own: #### 18"


def make(tokenizer: Any, source: Any, *, rows: Mapping[str, Any] | None = None, **options: Any) -> tuple[Env, Table]:
    r"""Environment and table of GSM8K, or of any data of that form.

    The reward is 1.0 for an answer that ends up with exactly the gold number (`rewards.numeric_match`), else 0.0; the
    episode is over after one answer.

    Args:
        tokenizer: what `load_tokenizer` takes; or a `Codec`, whose config is then used as it is.
        source: a JSONL file's path, a ``datasets.Dataset``, a dataset's name or folder, or an iterable of dicts. Each
            row holds ``question``, and the gold answer as ``gold``, or as ``answer``, where it is what stands behind
            the last ``####`` if there is one.
        rows: how rows are read, as `from_dataset` and its kin have it: ``split``, ``name``, ``limit``, ``on_long``,
            ``width``, and ``columns``, as in ``{"question": "frage"}``, where yours have other names.
        **options: of `make_config`: a system prompt, limits, a chat template.

    Returns:
        The environment; and the table, whose ``info.task`` is a `rewards.Number`.

    Raises:
        ValueError: a row without question or answer, a gold answer that is no number: with the row, before anything
            runs.

    Example:
        >>> import jax, statelesschat as sc
        >>> rows = [{"question": "Two hats at $9 each cost how much?", "answer": "2 * 9 = 18\n#### 18"}]
        >>> env, table = sc.tasks.gsm8k.make(None, rows)
        >>> states = sc.begin(env, table, jax.random.key(0))
        >>> codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
        >>> jax.vmap(env.step)(states, codec.encode_actions(["It is 2 * 9.\n#### $18.00"])).reward.tolist()
        [1.0]
    """
    return assemble(TASK, codec_for(TASK, tokenizer, options), source, rows or {})


def read_row(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Question and gold answer of a row."""
    gold = text_at(raw, "gold", "answer")
    return {"prompt": text_at(raw, "question"), "gold": gold.rpartition("####")[2].strip()}


def make_env(codec: Codec, vocabulary: TokenBytes) -> Env:
    """One answer, judged."""
    return with_stop(with_reward(chat_env(codec.config), Partial(numeric_reward, vocabulary)))


TASK = Task(
    name="gsm8k",
    about="grade-school word problems with a number for an answer",
    columns="question and gold, or answer with #### before the number",
    system_prompt=SYSTEM_PROMPT,
    limits={
        "capacity": 2048,
        "max_messages": 3,
        "max_message_len": 64,
        "max_prompt_len": 1024,
        "max_response_len": 1024,
        "max_turns": 1,
    },
    read=read_row,
    collate=gold_numbers,
    env=make_env,
)

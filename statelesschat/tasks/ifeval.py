"""IFEval: prompts with instructions whose following can be checked by a program; one turn.

Source: Zhou et al. (2023), "Instruction-Following Evaluation for Large Language Models", arXiv:2311.07911.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

from statelesschat.data.rows import Table
from statelesschat.envs.env import Env
from statelesschat.host.graders import check_instructions, ifeval_reward
from statelesschat.host.grading import GraderPool
from statelesschat.tasks.graded import bounded, graded, made, references
from statelesschat.tasks.task import Task, text_at

_WIDTH = 2048  # bytes of a row's instructions


def make(
    tokenizer: Any,
    source: Any,
    *,
    rows: Mapping[str, Any] | None = None,
    pool: GraderPool | None = None,
    deadline_s: float | None = None,
    **options: Any,
) -> tuple[Env, Table]:
    """Environment and table of prompts with instructions that can be verified.

    The reward is 1.0 for an answer that follows all of its row's instructions (`host.ifeval_reward`), else 0.0; the
    episode is over after one answer. Answers are judged by processes on the host, as `tasks.math` has it.

    Args:
        tokenizer: what `load_tokenizer` takes; or a `Codec`, whose config is then used as it is.
        source: as `gsm8k.make` has it. Each row holds ``prompt``, ``instruction_id_list`` and ``kwargs``, as those of
            google/IFEval do.
        rows: how rows are read, as `gsm8k.make` has it.
        pool: of graders; by default one for all environments of this task. With
            ``GraderPool(functools.partial(ifeval_reward, level="instruction"))`` the reward is the fraction that is
            followed.
        deadline_s: seconds until a step goes on without the rows that are not judged, as `host.with_grader` has it.
        **options: of `make_config`: a system prompt (none by default), limits, a chat template.

    Returns:
        The environment; and the table, whose ``info.task`` is a `host.Reference`, the instructions as JSON.

    Raises:
        ImportError: if-verifiable is not installed: ``pip install 'statelesschat[graders]'``.
        ValueError: a row without prompt, an unknown instruction, or arguments that it does not take: with the row,
            before anything runs.

    Example:
        >>> import jax, statelesschat as sc
        >>> instructions = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        >>> env, table = sc.tasks.ifeval.make(None, [{"prompt": "Write without commas.", **instructions}])
        >>> states = sc.begin(env, table, jax.random.key(0))
        >>> codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
        >>> jax.vmap(env.step)(states, codec.encode_actions(["As you like."])).reward.tolist()
        [1.0]
    """
    check_instructions({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]})  # the library is there
    return made(TASK, tokenizer, source, rows, pool, deadline_s, ifeval_reward, options)


def read_row(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and instructions of a row."""
    reference = {"instruction_id_list": raw.get("instruction_id_list"), "kwargs": _plain(raw.get("kwargs"))}
    check_instructions(reference)
    written = bounded(json.dumps(reference, ensure_ascii=False), _WIDTH, "what says the instructions")
    return {"prompt": text_at(raw, "prompt", "question"), "reference": written}


def _plain(kwargs: Any) -> Any:
    """Arguments without those that are None, with which tables of a dataset fill up their rows."""
    if not isinstance(kwargs, list | tuple):
        return kwargs
    return [
        {key: value for key, value in each.items() if value is not None} if isinstance(each, Mapping) else each
        for each in kwargs
    ]


TASK = Task(
    name="ifeval",
    about="prompts with instructions whose following can be checked by a program",
    columns="prompt, instruction_id_list and kwargs",
    system_prompt=None,
    limits={
        "capacity": 4096,
        "max_messages": 3,
        "max_message_len": 64,
        "max_prompt_len": 2048,
        "max_response_len": 2048,
        "max_turns": 1,
    },
    read=read_row,
    collate=functools.partial(references, _WIDTH),
    env=functools.partial(graded, ifeval_reward),
)

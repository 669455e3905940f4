"""Mathematics with any expression for an answer, judged by math-verify on the host; one turn.

The form is that of MATH (Hendrycks et al. 2021, arXiv:2103.03874) and of the many sets that follow it.
"""

import functools
from collections.abc import Mapping
from typing import Any

from statelesschat.data.rows import Table
from statelesschat.envs.env import Env
from statelesschat.host.graders import check_math_gold, math_reward
from statelesschat.host.grading import GraderPool
from statelesschat.tasks.graded import bounded, graded, made, references
from statelesschat.tasks.task import Task, text_at

SYSTEM_PROMPT = r"Solve the problem step by step. Put the final answer in \boxed{}."
_WIDTH = 512  # bytes of a gold answer


def make(
    tokenizer: Any,
    source: Any,
    *,
    rows: Mapping[str, Any] | None = None,
    pool: GraderPool | None = None,
    deadline_s: float | None = None,
    **options: Any,
) -> tuple[Env, Table]:
    r"""Environment and table of mathematical problems.

    The reward is 1.0 for an answer that math-verify finds equal to the gold one (`host.math_reward`), else 0.0; the
    episode is over after one answer. Answers are judged by processes on the host: one that takes longer than the pool's
    ``timeout_s`` (10 seconds), or crashes its grader, ends its row with status HOST_ERROR, and `host.faults` says why.

    Args:
        tokenizer: what `load_tokenizer` takes; or a `Codec`, whose config is then used as it is.
        source: as `gsm8k.make` has it. Each row holds ``problem`` or ``question``, and the gold answer as ``gold`` or
            ``answer``: a number, LaTeX, or a text with a box in it.
        rows: how rows are read, as `gsm8k.make` has it.
        pool: of graders, such as ``GraderPool(math_reward, workers=16, timeout_s=3)``; by default one for all
            environments of this task, which ends with the program.
        deadline_s: seconds until a step goes on without the rows that are not judged, as `host.with_grader` has it.
        **options: of `make_config`: a system prompt, limits, a chat template.

    Returns:
        The environment; and the table, whose ``info.task`` is a `host.Reference`, the gold answer.

    Raises:
        ImportError: math-verify is not installed: ``pip install 'statelesschat[graders]'``.
        ValueError: a row without problem or answer, or a gold answer that math-verify cannot read: with the row, before
            anything runs.

    Example:
        >>> import jax, statelesschat as sc
        >>> rows = [{"problem": "What is half of one?", "answer": r"\frac{1}{2}"}]
        >>> env, table = sc.tasks.math.make(None, rows)
        >>> states = sc.begin(env, table, jax.random.key(0))
        >>> codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
        >>> jax.vmap(env.step)(states, codec.encode_actions([r"It is \boxed{0.5}."])).reward.tolist()
        [1.0]
    """
    check_math_gold("1")  # the library is there
    return made(TASK, tokenizer, source, rows, pool, deadline_s, math_reward, options)


def read_row(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Problem and gold answer of a row."""
    gold = bounded(text_at(raw, "gold", "answer"), _WIDTH, "the gold answer")
    check_math_gold(gold)
    return {"prompt": text_at(raw, "problem", "question"), "reference": gold}


TASK = Task(
    name="math",
    about="mathematics with any expression for an answer, judged by math-verify",
    columns="problem or question, and gold or answer",
    system_prompt=SYSTEM_PROMPT,
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
    env=functools.partial(graded, math_reward),
)

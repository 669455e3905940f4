"""Tasks by their names."""

from typing import Any

from statelesschat.data.rows import Table
from statelesschat.envs.env import Env
from statelesschat.tasks import arithmetic, countdown, gsm8k
from statelesschat.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (arithmetic.TASK, countdown.TASK, gsm8k.TASK)}
_MAKERS = {"arithmetic": arithmetic.make, "countdown": countdown.make, "gsm8k": gsm8k.make}


def named(name: str) -> Task:
    """The task of a name; ValueError lists those there are."""
    if name not in TASKS:
        raise ValueError(f"no task is named {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]


def make(name: str, tokenizer: Any, *source: Any, **options: Any) -> tuple[Env, Table]:
    """Environment and table of a task by its name: ``make("gsm8k", tokenizer, source, …)`` is `gsm8k.make`.

    Raises ValueError, with the names there are, for an unknown one.
    """
    named(name)
    return _MAKERS[name](tokenizer, *source, **options)

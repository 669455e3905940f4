"""Tasks by their names."""

from collections.abc import Callable
from typing import Any

from statelesschat.data.rows import Table
from statelesschat.envs.env import Env
from statelesschat.tasks import arithmetic, countdown, gsm8k, ifeval, math
from statelesschat.tasks.task import Task

_MODULES = arithmetic, countdown, gsm8k, ifeval, math
TASKS: dict[str, Task] = {module.TASK.name: module.TASK for module in _MODULES}
_MAKERS: dict[str, Callable[..., tuple[Env, Table]]] = {module.TASK.name: module.make for module in _MODULES}


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

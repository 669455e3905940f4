"""Tasks: a source of rows made into an environment with its reward, and a table on the device."""

from statelesschat.tasks import arithmetic as arithmetic
from statelesschat.tasks import countdown as countdown
from statelesschat.tasks import gsm8k as gsm8k
from statelesschat.tasks import ifeval as ifeval
from statelesschat.tasks import math as math
from statelesschat.tasks.naming import TASKS as TASKS
from statelesschat.tasks.naming import make as make
from statelesschat.tasks.task import Task as Task

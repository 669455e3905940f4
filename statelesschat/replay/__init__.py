"""Replaying recorded conversations through the core, every prompt checked against the tokenizer's own template."""

from statelesschat.replay.job import Options as Options
from statelesschat.replay.job import Summary as Summary
from statelesschat.replay.job import replay as replay
from statelesschat.text.jsonfile import InputError as InputError

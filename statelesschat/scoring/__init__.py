"""Scoring stored conversations again, by a task's own reward on the device, without a model."""

from statelesschat.scoring.job import Scores as Scores
from statelesschat.scoring.job import Verdict as Verdict
from statelesschat.scoring.job import score as score

"""Learning: losses as pure functions, and rollout, reward and update as one compiled program."""

from statelesschat.learn.checkpoint import CheckpointError as CheckpointError
from statelesschat.learn.checkpoint import latest_checkpoint as latest_checkpoint
from statelesschat.learn.checkpoint import read_about as read_about
from statelesschat.learn.checkpoint import restore_checkpoint as restore_checkpoint
from statelesschat.learn.checkpoint import save_checkpoint as save_checkpoint
from statelesschat.learn.credit import turn_advantages as turn_advantages
from statelesschat.learn.credit import turn_returns as turn_returns
from statelesschat.learn.imitation import Imitation as Imitation
from statelesschat.learn.imitation import begin_imitation as begin_imitation
from statelesschat.learn.imitation import imitate as imitate
from statelesschat.learn.logprobs import token_logprobs as token_logprobs
from statelesschat.learn.losses import Loss as Loss
from statelesschat.learn.losses import grpo_loss as grpo_loss
from statelesschat.learn.losses import reinforce_loss as reinforce_loss
from statelesschat.learn.losses import token_weights as token_weights
from statelesschat.learn.recipe import Recipe as Recipe
from statelesschat.learn.training import Metrics as Metrics
from statelesschat.learn.training import TrainState as TrainState
from statelesschat.learn.training import begin_training as begin_training
from statelesschat.learn.training import train as train
from statelesschat.learn.windows import bucket_widths as bucket_widths

"""Environments by composition: an `Env` is three pure functions, and everything else a function from Env to Env."""

from statelesschat.envs.combinators import Predicate as Predicate
from statelesschat.envs.combinators import Reply as Reply
from statelesschat.envs.combinators import Reward as Reward
from statelesschat.envs.combinators import with_reply as with_reply
from statelesschat.envs.combinators import with_reward as with_reward
from statelesschat.envs.combinators import with_stop as with_stop
from statelesschat.envs.combinators import with_thinking_prompt as with_thinking_prompt
from statelesschat.envs.divergence import Reference as Reference
from statelesschat.envs.divergence import Referenced as Referenced
from statelesschat.envs.divergence import with_kl_reward as with_kl_reward
from statelesschat.envs.env import Env as Env
from statelesschat.envs.env import EnvState as EnvState
from statelesschat.envs.env import answered as answered
from statelesschat.envs.env import begin as begin
from statelesschat.envs.env import chat_env as chat_env
from statelesschat.envs.env import combine as combine
from statelesschat.envs.env import restart as restart
from statelesschat.envs.loops import Policy as Policy
from statelesschat.envs.loops import Turn as Turn
from statelesschat.envs.loops import collect as collect
from statelesschat.envs.loops import rollout as rollout

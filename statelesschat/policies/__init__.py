"""Policies: a causal model as a pure sampler with a cache, the reference transformer, and adapters of real models."""

from statelesschat.policies.distribution import GREEDY as GREEDY
from statelesschat.policies.distribution import Sampling as Sampling
from statelesschat.policies.distribution import logprobs_of as logprobs_of
from statelesschat.policies.distribution import sample_ids as sample_ids
from statelesschat.policies.distribution import sampling_logprobs as sampling_logprobs
from statelesschat.policies.model import Cache as Cache
from statelesschat.policies.model import Model as Model
from statelesschat.policies.model import check_params as check_params
from statelesschat.policies.pretrained import load_model as load_model
from statelesschat.policies.sampler import Memory as Memory
from statelesschat.policies.sampler import Sampler as Sampler
from statelesschat.policies.sampler import sampler as sampler
from statelesschat.policies.transformer import Transformer as Transformer
from statelesschat.policies.transformer import TransformerConfig as TransformerConfig
from statelesschat.policies.transformer import init_params as init_params
from statelesschat.policies.transformer import num_params as num_params
from statelesschat.policies.transformer import transformer as transformer

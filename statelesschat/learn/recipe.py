"""What a training run is made of, checked on the host before anything is compiled."""

import dataclasses
from typing import Any, Literal

import jax

from statelesschat.core.config import ChatConfig, Static
from statelesschat.learn.credit import BASELINES, Baseline
from statelesschat.learn.losses import Normalise
from statelesschat.learn.windows import bucket_widths
from statelesschat.policies.distribution import Sampling
from statelesschat.policies.model import Model
from statelesschat.policies.sampler import Sampler, sampler
from statelesschat.rewards.kl import Estimator


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe(Static):
    """A training run: model, optimiser, and how much of what in an update. A constant of jit.

    Raises:
        ValueError: for choices that do not go together, saying which to change.
    """

    model: Model
    config: ChatConfig  # of the environment's states; it has to store log-probabilities
    optimizer: Any  # an `optax.GradientTransformation`
    batch: int = 64  # conversations at once, B
    repeats: int = 8  # of them begin with the same prompt; B is a multiple of it
    turns: int | None = None  # answers to a row in an update; None: max_turns, so that every conversation ends in one
    sampling: Sampling = Sampling()  # only a temperature
    max_tokens: int | None = None  # ids of an answer; None: max_response_len
    chunk: int | None = None  # see `sampler`, as for `rows` and `slots`
    rows: int | None = None
    slots: tuple[int, ...] | None = None
    loss: Literal["grpo", "reinforce"] = "grpo"
    baseline: Baseline = "group_scaled"  # what a turn's return is compared with
    negative: float = 1.0  # what advantages below 0 are multiplied with; 0: only what went better than usual is learned
    discount: float = 1.0  # of what later turns bring, for each turn
    normalise: Normalise = "token"
    clip: tuple[float, float] | None = (0.2, 0.2)  # of the ratio, for "grpo"
    kl_coefficient: float = 0.0  # of the KL to the params at the beginning, for "grpo"
    kl_estimator: Estimator = "k3"
    epochs: int = 1  # passes over one batch of conversations
    minibatch: int | None = None  # informative rows to a step of the optimiser, dividing B; None: all, one step
    microbatch: int | None = None  # rows whose gradient is computed at once, dividing B; None: all
    buckets: tuple[int, ...] | None = None  # widths of windows; None: `bucket_widths`

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name in (
            "batch",
            "repeats",
            "epochs",
            *(n for n in ("turns", "microbatch", "minibatch") if getattr(self, n) is not None),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}; give a whole number from 1 on")
        if self.loss not in ("grpo", "reinforce"):
            raise ValueError(f"loss={self.loss!r}; give 'grpo' or 'reinforce'")
        if self.baseline not in BASELINES:
            raise ValueError(f"baseline={self.baseline!r}; give one of {', '.join(BASELINES)}")
        if self.baseline.startswith("group") and self.repeats < 2:
            raise ValueError(
                f"repeats={self.repeats} with baseline={self.baseline!r}: in a group of one there is nothing to "
                "compare; give repeats=2 or more, or baseline='batch'"
            )
        if self.batch % self.repeats:
            raise ValueError(f"batch={self.batch} is no multiple of repeats={self.repeats}; groups would be torn apart")
        if self.batch % self.rows_to_a_step:
            raise ValueError(f"batch={self.batch} is no multiple of minibatch={self.minibatch}")
        if self.rows_to_a_step % self.rows_at_once:
            raise ValueError(f"microbatch={self.microbatch} does not divide the {self.rows_to_a_step} rows of a step")
        if self.negative < 0:
            raise ValueError(f"negative={self.negative}; give a number from 0 on")
        if not self.config.store_logprobs:
            raise ValueError("the config stores no log-probabilities; make the environment with store_logprobs=True")
        if self.sampling.greedy or self.sampling != Sampling(self.sampling.temperature):
            raise ValueError(
                f"{self.sampling}: a policy that learns from its samples needs a temperature above 0, and neither "
                "top_k, top_p nor min_p, under which ids that were not sampled have no probability to compare"
            )
        if self.kl_coefficient and (self.loss != "grpo" or self.kl_estimator == "k1" or self.kl_coefficient < 0):
            raise ValueError("kl_coefficient takes a number from 0 on, loss='grpo', and kl_estimator 'k2' or 'k3'")
        if self.loss == "reinforce" and self.epochs > 1:
            raise ValueError("epochs above 1 need loss='grpo': only its ratio knows that the policy has moved on")
        widths = self.widths
        if list(widths) != sorted(set(widths)) or widths[0] < 2 or widths[-1] != self.config.capacity:
            raise ValueError(
                f"buckets={widths}; give rising widths from 2 on, the last one the capacity, {self.config.capacity}"
            )
        self.policy()  # raises for the model, max_tokens and chunk

    @property
    def num_turns(self) -> int:
        """Answers to a row in an update."""
        return self.config.max_turns if self.turns is None else self.turns

    @property
    def rows_to_a_step(self) -> int:
        """Rows to a step of the optimiser, at most."""
        return self.batch if self.minibatch is None else self.minibatch

    @property
    def rows_at_once(self) -> int:
        """Rows whose gradient is computed at once."""
        return self.rows_to_a_step if self.microbatch is None else self.microbatch

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of windows."""
        return bucket_widths(self.config.capacity) if self.buckets is None else tuple(self.buckets)

    def step(self, gradients: Any, optimizer: Any, params: Any) -> tuple[Any, Any]:
        """A step of the optimiser: params and its state after it."""
        import optax

        with jax.numpy_dtype_promotion("standard"):  # optax counts on it
            updates, optimizer = self.optimizer.update(gradients, optimizer, params)
            return optax.apply_updates(params, updates), optimizer

    def policy(self, sampling: Sampling | None = None) -> Sampler:
        """The sampler that trains, or one that samples otherwise, as for an evaluation."""
        return sampler(
            self.model,
            self.config,
            self.sampling if sampling is None else sampling,
            max_tokens=self.max_tokens,
            chunk=self.chunk,
            shared=self.repeats if sampling is None else 1,
            rows=self.rows if sampling is None else None,
            slots=self.slots if sampling is None else None,
        )

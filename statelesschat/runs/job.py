"""The training job: imitation of some answers, reinforcement learning, and held-out rewards before and after."""

import dataclasses
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from statelesschat.envs.env import EnvState, begin
from statelesschat.envs.loops import rollout
from statelesschat.learn.checkpoint import restore_checkpoint, save_checkpoint
from statelesschat.learn.imitation import begin_imitation, imitate
from statelesschat.learn.training import Metrics, TrainState, begin_training, train
from statelesschat.policies.transformer import init_params
from statelesschat.runs.folder import RunFolder
from statelesschat.runs.options import Options
from statelesschat.runs.setup import CHUNK, WARM_CHUNK, Setup, make_setup

_SAVE_EVERY = 50  # updates between checkpoints
_LOOK_EVERY = 50  # updates between held-out evaluations
ENOUGH = 0.12  # of unseen problems right at the first try: imitation stops, and rewards are found often enough
_SAMPLES = 4  # conversations kept of each look


class Interrupted(Exception):
    """The run was asked to stop; what it has is in its checkpoint."""

    def __init__(self, folder: str, update: int) -> None:
        super().__init__(folder, update)
        self.folder, self.update = folder, update


class NotFinite(Exception):
    """A loss or a gradient was not finite."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is."""

    stage: str
    done: int
    total: int
    seconds: float  # since the run began
    stage_seconds: float  # since the stage did, its first chunk left out
    rewards: list[float]  # of each update so far
    held_out: dict[str, float]
    sample: list[str]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run comes to."""

    task: str
    seed: int
    updates: int
    warm_up: int
    batch: int
    problems: int
    held_out: int
    reward_random: float  # mean held-out reward of random params, greedy
    reward_before: float  # before reinforcement learning, greedy
    reward_after: float
    first_try_after: float
    seconds: float
    compile_s: float  # of it until the first results of the compiled programs, above the later ones' time
    folder: str

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return dataclasses.asdict(self)


def train_run(options: Options, folder: str, resume: bool, show: Callable[[Progress], None]) -> Summary:
    """Train, and keep everything in a folder.

    Raises:
        OptionError, FolderError, CheckpointError: for what cannot be done, before anything is trained.
        Interrupted: Ctrl-C; the checkpoint holds all updates that were made.
        NotFinite: a loss or a gradient was not finite; the last good checkpoint stays.
    """
    return _Run(options, folder, resume, show).run()


class _Run:
    def __init__(self, options: Options, folder: str, resume: bool, show: Callable[[Progress], None]) -> None:
        self.options, self.resume, self.show = options, resume, show
        self.began = time.perf_counter()
        self.setup: Setup = make_setup(options)
        self.folder = RunFolder(folder)
        self.folder.open({**options.about(), **_sizes(self.setup)}, resume)
        self.rewards: list[float] = []
        self.held_out: dict[str, float] = {}
        self.sample: list[str] = []
        self.compile_s = 0.0

    def run(self) -> Summary:
        with _stoppable() as stop:
            state = self._resumed() if self.resume else self._begun(stop)
            state = self._trained(state, stop)
        after, first_try = self._looked(state.params, "after", int(state.update))
        return Summary(
            task=self.options.task,
            seed=self.options.seed,
            updates=int(state.update),
            warm_up=self.folder.noted()["imitated"],
            batch=self.options.batch,
            problems=len(self.setup.problems["train"]),
            held_out=len(self.setup.problems["held_out"]),
            reward_random=self.held_out["random params"],
            reward_before=self.held_out["before"],
            reward_after=after,
            first_try_after=first_try,
            seconds=round(time.perf_counter() - self.began, 1),
            compile_s=round(self.compile_s, 1),
            folder=str(self.folder.path),
        )

    def _begun(self, stop: Callable[[], bool]) -> TrainState:
        """Random params, imitation, and the first checkpoint."""
        setup, seed = self.setup, self.options.seed
        params = init_params(setup.shape, jax.random.key(seed))
        self._tell("compiling", 0, 1, 0.0)
        self._looked(params, "random params", -1)
        state = begin_imitation(setup.warm_up, params, seed)
        began, first, made = time.perf_counter(), 0.0, 0
        for done in range(0, self.options.warm_up, WARM_CHUNK):
            if stop():
                raise Interrupted("", 0)
            state, losses = imitate(setup.warm_up, setup.env, setup.table, setup.answers, state, WARM_CHUNK)
            if not np.isfinite(np.asarray(losses)).all():
                at = done + int(np.argmin(np.isfinite(np.asarray(losses)))) + 1
                raise NotFinite(f"imitation: the loss of update {at} is not finite, and there is no checkpoint yet")
            if not done:
                first = time.perf_counter() - began
            made = done + WARM_CHUNK
            if self._mean_first_try(state.params) >= ENOUGH:
                break
            self._tell("imitation", done + WARM_CHUNK, self.options.warm_up, time.perf_counter() - began - first)
        self._note_compile(first, time.perf_counter() - began - first, WARM_CHUNK, made)
        self.folder.note({"imitated": made})
        self._looked(state.params, "before", 0)
        begun = begin_training(setup.recipe, setup.env, setup.table, state.params, seed)
        self._save(begun)
        return begun

    def _mean_first_try(self, params: Any) -> float:
        """Mean reward of first tries at problems that are neither imitated nor among the held-out ones, greedy."""
        states = _evaluate(self.setup.env, self.setup.greedy, params, self.setup.unseen)
        return float(np.asarray(states.chat.turn_rewards)[:, 0].mean())

    def _resumed(self) -> TrainState:
        setup = self.setup
        blank = begin_training(
            setup.recipe, setup.env, setup.table, init_params(setup.shape, jax.random.key(0)), self.options.seed
        )
        state = restore_checkpoint(self.folder.checkpoint, blank, self._about())
        self.folder.drop_after(int(state.update))
        self.rewards = [line["reward"] for line in self.folder.metrics()]
        self.held_out = self.folder.looks()
        return state

    def _trained(self, state: TrainState, stop: Callable[[], bool]) -> TrainState:
        total, setup = self.options.updates, self.setup
        began, first, at_first = time.perf_counter(), 0.0, int(state.update)
        while int(state.update) < total:
            before = int(state.update)
            # Always the same program: only so a run that was resumed equals one that was not, to the bit.
            state, metrics = train(setup.recipe, setup.env, setup.table, state, CHUNK)
            jax.block_until_ready(state)
            self._kept(before, metrics)
            done = int(state.update)
            if bool(state.halted):
                self._refused(state, done)
            if before == at_first:
                first = time.perf_counter() - began
            if done % _LOOK_EVERY == 0:
                self._looked(state.params, f"update {done}", done)
            if done % _SAVE_EVERY == 0 or done >= total:
                self._save(state)
            self._tell("training", done, total, time.perf_counter() - began - first)
            if stop() and done < total:
                self._save(state)
                raise Interrupted(str(self.folder.path), done)
        self._note_compile(first, time.perf_counter() - began - first, CHUNK, total - at_first)
        return state

    def _kept(self, before: int, metrics: Metrics) -> None:
        arrays = {name: np.asarray(values).tolist() for name, values in metrics._asdict().items()}
        lines = [{"update": before + i + 1} | {n: v[i] for n, v in arrays.items()} for i in range(CHUNK)]
        lines = [{n: _rounded(v) for n, v in line.items() if n != "good"} for line in lines if line["good"]]
        self.folder.add_metrics(lines)
        self.rewards += [line["reward"] for line in lines]

    def _refused(self, state: TrainState, done: int) -> None:
        info: Any = state.states.chat.info
        rows = sorted({int(row) for row in np.asarray(info.row_id) if row >= 0})
        self.folder.add_conversations(self._lines(state.states, "not finite", done + 1, None))
        raise NotFinite(
            f"update {done + 1}: the loss or its gradient is not finite. Nothing was updated by it; the checkpoint in "
            f"{self.folder.path} is of an update before. Its {len(rows)} prompts (rows {', '.join(map(str, rows[:8]))}"
            f"{', …' if len(rows) > 8 else ''} of the table) and the answers to them are in conversations.jsonl, "
            "as stage 'not finite'. A lower --learning-rate is the usual remedy"
        )

    def _looked(self, params: Any, stage: str, update: int) -> tuple[float, float]:
        """Mean held-out reward, greedy, and that of first tries; conversations go to the folder."""
        setup = self.setup
        states = _evaluate(setup.env, setup.greedy, params, setup.held_out)
        rewards = np.asarray(states.chat.turn_rewards)
        mean, first = float(rewards.sum(axis=1).mean()), float(rewards[:, 0].mean())
        keep = None if stage in ("random params", "before", "after") else _SAMPLES
        lines = list(self._lines(states, stage, update, keep, {"mean_reward": mean, "mean_first_try": first}))
        self.folder.add_conversations(lines)
        self.held_out[stage] = mean
        shown = lines[update % max(len(lines), 1)]["messages"]
        self.sample = [f"{message['role']}: {message['content']}" for message in shown]
        return mean, first

    def _lines(
        self, states: EnvState, stage: str, update: int, keep: int | None, more: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        states = jax.tree.map(lambda leaf: leaf[:keep], states) if keep else states
        rewards = np.asarray(states.chat.turn_rewards).sum(axis=1)
        for messages, reward in zip(self.setup.codec.decode_history(states.chat), rewards):
            told = [{"role": message["role"], "content": message["content"]} for message in messages]
            yield {"stage": stage, "update": update, "reward": float(reward), "messages": told, **(more or {})}

    def _save(self, state: TrainState) -> None:
        save_checkpoint(self.folder.checkpoint, state, self._about())

    def _about(self) -> dict[str, Any]:
        return {**self.options.about(), **_sizes(self.setup)}

    def _tell(self, stage: str, done: int, total: int, stage_seconds: float) -> None:
        seconds = time.perf_counter() - self.began
        self.show(
            Progress(stage, done, total, seconds, stage_seconds, self.rewards, dict(self.held_out), self.sample)
        )  # fmt: skip

    def _note_compile(self, first: float, rest: float, chunk: int, total: int) -> None:
        """What the first chunk took above a later one."""
        if total > chunk:
            self.compile_s += max(0.0, first - rest * chunk / (total - chunk))


@jax.jit
def _evaluate(env: Any, policy: Any, params: Any, table: Any) -> EnvState:
    states = begin(env, table, jax.random.key(0))
    return rollout(env, policy, params, states, jax.random.key(0), states.chat.config.max_turns)[0]


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed. The second time it interrupts as usual, so nothing hangs."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    usual = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, usual)


def _sizes(setup: Setup) -> dict[str, Any]:
    shape = {f.name: getattr(setup.shape, f.name) for f in dataclasses.fields(setup.shape)}
    return json.loads(json.dumps({"model": shape, "capacity": setup.recipe.config.capacity}))


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value

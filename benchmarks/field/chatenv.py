"""TorchRL's ChatEnv in its three modes; each turn ends in token ids.

ChatEnv hands a conversation on as the caller gives it: the caller joins prompt, answer and reply, each turn anew. In
tokens mode it can only batch equal lengths (`reset` and `step` stack the rows), so where answers differ in length each
row has an environment's step to itself.
"""

from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase, set_list_to_stack
from torchrl.data.llm import History
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm.policies.common import ChatHistory, Text, Tokens

from field import work
from field.contest import Contestant


def contestants(options: work.Options) -> dict[str, Contestant]:
    """Tokens mode over the batch of ids, text and history mode over the batch of texts."""
    set_list_to_stack(True).set()
    tokenizer = work.load_tokenizer()
    return {
        "tokens": TokensMode(tokenizer, options.batch),
        "rollout": Rollout(tokenizer, options.batch),
        "tokens by row": ByRow(tokenizer, options.batch),
        "text": TextMode(tokenizer, options.text_batch),
        "history": HistoryMode(tokenizer, options.text_batch),
    }


class TokensMode(Contestant):
    """Ids that are there already are joined and handed to `step` in a new `Tokens`."""

    def __init__(self, tokenizer: Any, batch: int) -> None:
        self.batch, self.turns = batch, work.TOKEN_TURNS
        self.env = ChatEnv(input_mode="tokens", batch_size=(batch,), tokenizer=tokenizer)
        self.first = self.env.reset(TensorDict({"query": ["What is 2+3?"] * batch}, batch_size=(batch,)))
        self.answer = torch.full((batch, work.ANSWER_IDS), 33)
        self.reply = torch.full((batch, work.REPLY_IDS), 44)

    def prepare(self) -> None:
        """Back to the first prompt."""
        self.state = self.first.clone()

    def step(self, state: TensorDictBase) -> TensorDictBase:
        """The next state."""
        return self.env.step(state)["next"]

    def run(self) -> None:
        """All turns; the next prompt is one tensor after each."""
        state = self.state
        for _ in range(self.turns):
            full = torch.cat([state["tokens"].prompt, self.answer, self.reply], -1)
            state.set("tokens", Tokens(full=full, batch_size=(self.batch,)))
            state = self.step(state)
        self.prompt = state["tokens"].prompt

    def check(self) -> None:
        """Every row has every id."""
        written = self.turns * (work.ANSWER_IDS + work.REPLY_IDS)
        assert self.prompt.shape == (self.batch, self.first["tokens"].prompt.shape[1] + written)


class Rollout(TokensMode):
    """The same, with the step that TorchRL's own `rollout` and collectors take."""

    def step(self, state: TensorDictBase) -> TensorDictBase:
        """The next state, its rows begun anew where they are done."""
        return self.env.step_and_maybe_reset(state)[1]


class ByRow(TokensMode):
    """Answers of different lengths: an environment of batch size 1 takes the rows one after the other."""

    def __init__(self, tokenizer: Any, batch: int) -> None:
        super().__init__(tokenizer, 1)
        self.lengths = torch.tensor(work.answer_lengths(batch))
        self.answers = [[self.answer[:, :length] for length in row] for row in self.lengths.tolist()]
        self.rows = batch

    def prepare(self) -> None:
        """Back to the first prompt."""
        self.states = [self.first.clone() for _ in range(self.rows)]

    def run(self) -> None:
        """All turns."""
        for answers in self.answers:
            for row, (state, answer) in enumerate(zip(self.states, answers, strict=True)):
                full = torch.cat([state["tokens"].prompt, answer, self.reply], -1)
                state.set("tokens", Tokens(full=full, batch_size=(1,)))
                self.states[row] = self.step(state)

    def check(self) -> None:
        """Every row has every id."""
        begin = self.first["tokens"].prompt.shape[1] + self.turns * work.REPLY_IDS
        lengths = [state["tokens"].prompt.shape[1] - begin for state in self.states]
        assert lengths == self.lengths.sum(0).tolist()


class _Texts(Contestant):
    mode: str

    def __init__(self, tokenizer: Any, batch: int) -> None:
        self.tokenizer, self.batch, self.turns = tokenizer, batch, work.TEXT_TURNS
        self.env = ChatEnv(input_mode=self.mode, batch_size=(batch,), tokenizer=tokenizer)
        self.texts = work.Texts(batch)

    def prepare(self) -> None:
        """Back to the first prompt."""
        self.state = self.env.reset(TensorDict({"query": list(self.texts.questions)}, batch_size=(self.batch,)))

    def check(self) -> None:
        """The last prompt is the one that the template gives for the whole conversation."""
        assert [list(map(int, row)) for row in self.ids] == self.texts.last_prompts(self.tokenizer)


class TextMode(_Texts):
    """Strings are joined, the template's text written by hand, and the whole prompt is tokenised in the end."""

    mode = "text"

    def run(self) -> None:
        """All turns."""
        state = self.state
        for answers, replies in zip(self.texts.answers, self.texts.replies, strict=True):
            blocks = zip(state["text"].prompt, answers, replies, strict=True)
            full = NonTensorStack(*[prompt + work.written(answer, reply) for prompt, answer, reply in blocks])
            state.set("text", Text(full=full, batch_size=(self.batch,)))
            state = self.env.step(state)["next"]
            self.ids = self.tokenizer(list(state["text"].prompt), add_special_tokens=False)["input_ids"]


class HistoryMode(_Texts):
    """Messages are appended to a History, which is rendered and tokenised whole."""

    mode = "history"

    def run(self) -> None:
        """All turns."""
        state = self.state
        for answers, replies in zip(self.texts.answers, self.texts.replies, strict=True):
            full = state["history"].prompt.extend(self._said("assistant", answers), inplace=True, dim=-1)
            state.set("history", ChatHistory(full=full, batch_size=(self.batch,)))
            state = self.env.step(state)["next"]
            prompt = state["history"].prompt.extend(self._said("user", replies), inplace=True, dim=-1)
            ids = prompt.apply_chat_template(
                tokenizer=self.tokenizer, add_generation_prompt=True, tokenize=True, return_dict=True
            )
            self.ids = ids.get("input_ids", as_list=True)

    def _said(self, role: str, contents: list[str]) -> History:
        return History.from_chats([[{"role": role, "content": content}] for content in contents])

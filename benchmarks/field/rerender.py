"""What transformers offers: the whole conversation rendered again, and the bare tokenizer."""

from typing import Any

from field import work
from field.contest import Contestant


def contestants(options: work.Options) -> dict[str, Contestant]:
    """Both over the batch of texts."""
    tokenizer = work.load_tokenizer()
    return {"rerender": Rerender(tokenizer, options.text_batch), "tokenizer": NewText(tokenizer, options.text_batch)}


class Rerender(Contestant):
    """`apply_chat_template` on the whole batch of message lists, each turn."""

    def __init__(self, tokenizer: Any, batch: int) -> None:
        self.tokenizer, self.texts, self.turns = tokenizer, work.Texts(batch), work.TEXT_TURNS

    def prepare(self) -> None:
        """Back to the first prompt."""
        self.conversations = [[{"role": "user", "content": text}] for text in self.texts.questions]

    def run(self) -> None:
        """All turns."""
        for answers, replies in zip(self.texts.answers, self.texts.replies, strict=True):
            for messages, answer, reply in zip(self.conversations, answers, replies, strict=True):
                messages.append({"role": "assistant", "content": answer})
                messages.append({"role": "user", "content": reply})
            self.ids = self.tokenizer.apply_chat_template(
                self.conversations, add_generation_prompt=True, tokenize=True, return_dict=False
            )

    def check(self) -> None:
        """The last prompt is the one that the template gives for the whole conversation."""
        assert self.ids == self.texts.last_prompts(self.tokenizer)


class NewText(Contestant):
    """One call of the tokenizer a turn, on what the turn adds to the prompt; nobody joins the ids."""

    def __init__(self, tokenizer: Any, batch: int) -> None:
        self.tokenizer, self.texts, self.turns = tokenizer, work.Texts(batch), work.TEXT_TURNS
        turns = zip(self.texts.answers, self.texts.replies, strict=True)
        self.added = [[work.written(a, r) for a, r in zip(*turn, strict=True)] for turn in turns]

    def run(self) -> None:
        """All turns."""
        self.ids = [self.tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in self.added]

    def check(self) -> None:
        """Joined, the ids are the end of the last prompt."""
        for row, prompt in enumerate(self.texts.last_prompts(self.tokenizer)):
            added = [token for turn in self.ids for token in turn[row]]
            assert prompt[-len(added) :] == added

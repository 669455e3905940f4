r"""Graders for `statelesschat.host.grading.GraderPool`: mathematics by math-verify, instructions as IFEval checks them.

``pip install 'statelesschat[graders]'`` brings the libraries, which are imported when they are first used. This module
imports nothing of the package: workers load it by its path, without jax.
"""

import difflib
import functools
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

_INSTALL = "; pip install 'statelesschat[graders]'"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed")  # mathematics begins here, for math-verify
_POWER = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,2})(?![\w.])")
_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"(?<![A-Za-z])(?!(?:a?sin|a?cos|a?tan|log|exp|sqrt|max|min)\b)[A-Za-z]{3,}")

Level = Literal["prompt", "instruction"]


def math_reward(response: str, reference: str) -> float:
    r"""1.0 if an answer is mathematically equal to the gold answer, else 0.0, as math-verify judges it.

    math-verify looks for the last box, then for what "answer" announces, then for any formula or number. Before that:

    * what stands before the last ``</think>`` is dropped, and thinking that does not end is no answer;
    * of ``<answer>…</answer>`` only what the last one holds is judged;
    * ``\fbox`` is read as ``\boxed``, and a last box that does not close is no answer;
    * in a box, dollar signs and a full stop at the end are dropped; ``−`` is a minus, and ``3.5e4`` is 35000.

    math-verify's own time limits are switched off. They work by ``signal.alarm``: in the main thread only, not during
    one long step of C code, such as a large power, and what is cut short counts as a wrong answer. A `GraderPool`
    kills what takes too long and says TIMEOUT; elsewhere, an answer may take forever.

    Args:
        response: what the model wrote.
        reference: the gold answer, with or without dollar signs; check it with `check_math_gold`.

    Raises:
        ImportError: math-verify is not installed.
        ValueError: a gold answer that is no mathematics.

    Example:
        >>> math_reward(r"So it is \boxed{\frac{1}{2}}.", "0.5"), math_reward("It is 1/3.", "0.5")
        (1.0, 0.0)
    """
    gold = _gold(reference)
    text = _judged(response)
    if text is None:
        return 0.0
    parse, verify = _math_verify()
    return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))


def check_math_gold(gold: str) -> None:
    r"""Check a gold answer before any device work.

    Raises:
        ImportError: math-verify is not installed.
        TypeError: not text.
        ValueError: `math_reward` cannot compare anything with it: empty, prose, or mathematics that does not parse.

    Example:
        >>> check_math_gold(r"\frac{1}{2}")
    """
    _gold(gold)


def ifeval_reward(
    response: str, reference: Mapping[str, Any] | str, *, level: Level = "prompt", strict: bool = True
) -> float:
    """How well a response follows instructions that can be verified, as IFEval (arXiv:2311.07911) does.

    The checks are Google's own, as the package if-verifiable keeps them. Two differ, because theirs need the Punkt
    model of nltk, which is downloaded when it is first used, so that rewards would depend on a network:
    sentences (``length_constraints:number_sentences``) are counted by the rules in IFEval's own code, which differ from
    Punkt after rare abbreviations; words in capitals are found without splitting sentences first, which finds the
    same. The detection of languages is seeded. What stands before ``</think>`` is not judged.

    Args:
        response: what the model wrote; an empty one follows nothing.
        reference: ``{"instruction_id_list": […], "kwargs": [{…}, …]}``, as rows of google/IFEval are, or that as JSON;
            other keys, such as ``prompt``, and arguments that are None are passed over.
        level: "prompt": 1.0 if all are followed, else 0.0. "instruction": the fraction that is.
        strict: judge the response as it is. False: also without its first line, its last, and its asterisks, as
            IFEval's loose accuracy does; an instruction is followed if any of these does.

    Raises:
        ImportError: if-verifiable is not installed.
        ValueError: what `check_instructions` refuses, or another level.

    Example:
        >>> reference = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        >>> ifeval_reward("No commas here.", reference)
        1.0
    """
    if level not in ("prompt", "instruction"):
        raise ValueError(f"level={level!r}; give 'prompt' or 'instruction'")
    checkers = _checkers(reference)
    text = _after_thinking(response)
    if text is None or not text.strip():
        return 0.0
    if strict:
        variants = [text]
    else:
        from if_verifiable.common import get_loose_transformations

        variants = [variant for variant in get_loose_transformations(text) if variant.strip()]
    followed = [any(_follows(name, checker, variant) for variant in variants) for name, checker in checkers]
    return float(all(followed)) if level == "prompt" else sum(followed) / len(followed)


def check_instructions(reference: Mapping[str, Any] | str) -> None:
    """Check a reference of `ifeval_reward` before any device work.

    Raises:
        ImportError: if-verifiable is not installed.
        ValueError: not of that form, without instructions, an unknown instruction, or arguments that are not what it
            takes; one that is missing would be drawn at random.

    Example:
        >>> check_instructions({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]})
    """
    _checkers(reference)


@functools.cache
def _math_verify() -> tuple[Any, Any]:
    try:
        import math_verify.grader
        import math_verify.parser
    except ImportError as error:
        raise ImportError(f"math_reward needs math-verify ({error}){_INSTALL}") from error
    math_verify.parser.TIMEOUT_WARNING_SHOWN = True  # they warn once that there is no time limit
    math_verify.grader.TIMEOUT_WARNING_SHOWN = True
    return math_verify.parser.parse, math_verify.grader.verify


def _gold(gold: str) -> list[Any]:
    if not isinstance(gold, str):
        raise TypeError(f"the gold answer {gold!r} is a {type(gold).__name__}; give text")
    return _parsed(gold)


@functools.lru_cache(maxsize=4096)  # a group of answers shares its gold one
def _parsed(gold: str) -> list[Any]:
    parse, _ = _math_verify()
    text = _plain(gold).strip()
    words = _WORD.findall(_COMMAND.sub(" ", text))
    number = any(each.isdigit() for each in text)
    if _MARKED.search(text) or (words and number):  # "18 dollars"
        found = parse(text, parsing_timeout=None)
    elif len(words) > 1:
        found = []
    else:  # a formula, of which only simple ones are found without dollar signs
        found = parse(f"${text}$", parsing_timeout=None)
    if all(isinstance(each, str) for each in found):
        raise ValueError(
            f"the gold answer {gold!r} is no mathematics that math-verify can read; give a number or LaTeX, words in "
            r"\text{…}, or leave the row out"
        )
    return found


def _plain(text: str) -> str:
    text = text.replace("−", "-")
    return _POWER.sub(lambda found: format(Decimal(found[0]), "f"), text)


def _after_thinking(response: str) -> str | None:
    _, _, text = response.rpartition("</think>")
    return None if "<think>" in text else text


def _judged(response: str) -> str | None:
    """What math-verify is to read of a response; None: there is no answer in it."""
    text = _after_thinking(response)
    if text is None:
        return None
    answers = _ANSWER.findall(text)
    if answers:
        text = answers[-1].strip()
    text = _plain(text)
    boxes = list(_BOX.finditer(text))
    if boxes:
        last = boxes[-1]
        end = _closes(text, last.end())
        if end is None:
            return None
        content = text[last.end() : end].replace(r"\$", "").replace("$", "").strip().removesuffix(".")
        before = _BOX.sub(r"\\boxed{", text[: last.start()])
        text = rf"{before}\boxed{{{content}}}{text[end + 1 :]}"
    elif answers and not _MARKED.search(text):
        text = rf"\boxed{{{text}}}"
    return text


def _closes(text: str, start: int) -> int | None:
    """Where the brace closes whose content starts here."""
    depth = 1
    for found in re.compile(r"\\[\\{}]|[{}]").finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if not depth:
            return found.start()
    return None


@functools.cache
def _instructions() -> Mapping[str, Any]:
    try:
        import langdetect
        from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT
    except ImportError as error:
        raise ImportError(f"ifeval_reward needs if-verifiable ({error}){_INSTALL}") from error
    langdetect.DetectorFactory.seed = 0  # it samples, and would answer differently each time
    return INSTRUCTION_DICT


def _checkers(reference: Mapping[str, Any] | str) -> list[tuple[str, Any]]:
    known = _instructions()
    if isinstance(reference, str):
        try:
            reference = json.loads(reference)
        except ValueError as error:
            raise ValueError(f"the reference is no JSON: {error}; it begins with {reference[:60]!r}") from error
    form = 'give {"instruction_id_list": […], "kwargs": [{…}, …]}'
    if not isinstance(reference, Mapping) or not isinstance(reference.get("instruction_id_list"), list | tuple):
        raise ValueError(f"the reference {reference!r:.200} lists no instructions; {form}")
    names = reference["instruction_id_list"]
    given = reference.get("kwargs")
    given = [{}] * len(names) if given is None else given
    if not isinstance(given, list | tuple) or any(not isinstance(each, Mapping | None) for each in given):
        raise ValueError(f"kwargs is {given!r:.200}; {form}")
    if not names or len(given) != len(names):
        raise ValueError(f"{len(names)} instructions with {len(given)} kwargs; {form}, one for each and at least one")
    return [(name, _checker(known, name, kwargs or {})) for name, kwargs in zip(names, given)]


def _checker(known: Mapping[str, Any], name: Any, kwargs: Mapping[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4)
        raise ValueError(f"there is no instruction {name!r}; near ones: {', '.join(near) or ', '.join(known)}")
    checker = known[name](name)
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    needed = checker.get_instruction_args_keys()
    if missing := [key for key in needed if key not in kwargs]:
        raise ValueError(f"instruction {name!r} needs {', '.join(missing)} in its kwargs, and has {dict(kwargs)}")
    try:
        checker.build_description(**kwargs)
    except Exception as error:
        raise ValueError(f"instruction {name!r} takes {needed}, not {dict(kwargs)}: {error}") from error
    return checker


def _prepare_math() -> None:
    _gold(r"\frac{1}{2}")  # loads tables for the first formula


def _prepare_ifeval() -> None:
    _instructions()
    import langdetect

    langdetect.detect("It loads the profiles of all languages first.")


math_reward.__dict__["prepare"] = _prepare_math  # a worker calls it before its first row
ifeval_reward.__dict__["prepare"] = _prepare_ifeval


def _follows(name: str, checker: Any, text: str) -> bool:
    if name == "length_constraints:number_sentences":
        from if_verifiable.ifeval.instructions_util import split_into_sentences

        count = sum(1 for each in split_into_sentences(text) if re.search(r"\w", each))
    elif name == "change_case:capital_word_frequency":
        from nltk.tokenize import NLTKWordTokenizer

        count = sum(1 for word in NLTKWordTokenizer().tokenize(text) if word.isupper())
    else:
        return bool(checker.check_following(text))
    limit, relation = (checker.get_instruction_args()[key] for key in checker.get_instruction_args_keys())
    return count < limit if relation == "less than" else count >= limit

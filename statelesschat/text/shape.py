"""How a template writes tool calls and tool results, found by asking."""

import json
import os.path
from typing import Any

from statelesschat.text.fields import Fields
from statelesschat.text.marks import Displaced, Shape, marks
from statelesschat.text.pieces import PieceCodec
from statelesschat.text.probe import ASSISTANT, CALL, TOOL, USER, segments
from statelesschat.text.render import Renderer, RenderError

_FORMS = (  # said beside the call, what stands for nothing said, how arguments are given; preferred ones first
    Shape(said=1, arguments="dict"),
    Shape(said=1, arguments="string"),
    Shape(said=0, arguments="dict"),
    Shape(said=0, arguments="string"),
    Shape(said=0, blank="null", arguments="dict"),
    Shape(said=0, blank="null", arguments="string"),
)


class NoCalls(ValueError):
    """The template has no way to write tool calls; the message says why."""


def shape_of(render: Renderer, pieces: PieceCodec, eos: str | None) -> Shape:
    """How the template writes the fields of calls and results, and which control token ends a message with calls.

    Raises NoCalls where it leaves the calls out, raises, or ends them with nothing that is an added token.
    """
    problem = "the template leaves them out"
    forms: list[tuple[Shape, str]] = []
    for form in _FORMS:
        render.shape = form
        try:
            forms.append(_counted(render, form))
        except (RenderError, NoCalls) as error:
            problem = str(error) if isinstance(error, NoCalls) else f"the template raises ({error})"
        finally:
            render.shape = None
    if not forms:
        raise NoCalls(problem)
    # A mapping that the template writes as Python does, or JSON that it quotes once more, was given in the wrong form.
    odd = {"dict": "{'key'", "string": '\\"key'}
    shape = next((shape for shape, text in forms if odd[shape.arguments] not in text), forms[0][0])
    stop = _stop(render, pieces, shape, eos)
    if not stop:
        raise NoCalls("nothing that is an added token of this tokenizer stands between a call and its result")
    return shape._replace(stop=stop)


def _counted(render: Renderer, shape: Shape) -> tuple[Shape, str]:
    """The shape, from how often each sentinel is written with the result and without; and the text."""
    kinds = (USER, CALL, TOOL)
    contents: list[Any] = marks(kinds, shape)
    call, result = contents[1].calls[0], contents[2]
    value = json.loads(call.arguments)["key"]
    whole = render(kinds, contents, True)
    if whole.count(value) != 1 or call.name not in whole:
        raise NoCalls("the template leaves them out" if value not in whole else "the template writes them twice")
    if whole.count(result.content) != 1:
        raise NoCalls("the template leaves out their results")
    try:
        alone = render(kinds[:2], contents[:2], False)
    except RenderError:
        alone = ""
    if value not in alone:  # it shows calls only once they have results
        alone = whole[: whole.index(value)]
    said = whole.count(contents[1].content)
    if said > 1:
        raise NoCalls("the template writes what is said beside them twice")
    if said and whole.index(contents[1].content) > whole.index(result.content):
        said = 0  # behind the results: such messages are refused, those that say nothing are not
    names, ids = alone.count(call.name), alone.count(call.id)
    counts = {
        "said": said,
        "call_name": names,
        "call_id": ids,
        "result_name": whole.count(call.name) - names,
        "result_id": whole.count(call.id) - ids,
    }
    return shape._replace(**counts), whole


def _stop(render: Renderer, pieces: PieceCodec, shape: Shape, eos: str | None) -> str:
    """The control token that ends a message with calls.

    It is the one that ends other answers, or the tokenizer's own, if the template writes that behind a call; else the
    special one at the end of a call that has no result yet; else the first one that is there because a result follows.
    """
    render.shape = shape
    kinds = (USER, CALL, TOOL)
    try:
        text = render(kinds, marks(kinds, shape), True)
        contents: list[Any] = marks(kinds, shape)
        last = _end_of_call(text, contents[1], shape)
        between = text[last : text.index(contents[2].content)]
        plain = segments(render, (USER, ASSISTANT, USER), True).gaps[2]
        usual = pieces.cut(plain).core
        first = pieces.full.decode(pieces.cut(plain).core_ids[:1], skip_special_tokens=False) if usual else ""
        for stop in (first, eos or ""):
            if stop and stop in between:
                return stop
        try:
            alone = render(kinds[:2], contents[:2], False)
            tail = alone[_end_of_call(alone, contents[1], shape) :]
        except RenderError:
            tail = ""
    except (RenderError, Displaced, ValueError):
        return ""
    finally:
        render.shape = None
    same = os.path.commonprefix([tail, between])
    ending = pieces.cut(same)
    if tail and same.rstrip() == tail.rstrip() and not ending.lead.strip() and ending.core_ids:
        token = pieces.controls[ending.core_ids[-1]]
        if token.special:
            return str(token.content)
    rest = pieces.cut(between[len(same) :])
    return pieces.full.decode(rest.core_ids[:1], skip_special_tokens=False) if rest.core_ids else ""


def _end_of_call(text: str, content: Fields, shape: Shape) -> int:
    """Where the last field of a message with one call ends."""
    call = content.calls[0]
    ends = [text.index(json.loads(call.arguments)["key"]) + len(json.loads(call.arguments)["key"])]
    for mark, times in ((call.name, shape.call_name), (call.id or "", shape.call_id)):
        at = -1
        for _ in range(times):
            at = text.index(mark, at + 1)
        ends += [at + len(mark)] if times else []
    return max(ends)

"""What templates do to a content: found by asking, then applied without asking."""

import json
from collections.abc import Callable, Sequence

from statelesschat.text.marks import Displaced, marks
from statelesschat.text.probe import segments
from statelesschat.text.render import Renderer, RenderError

UNKNOWN = "unknown"  # some content changes the text around it
RENDERED = "rendered"  # neither of the known ones: the template itself is asked for every content
KNOWN: dict[str, Callable[[str], str]] = {
    "identity": lambda text: text,
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    "strip_newlines": lambda text: text.strip("\n"),
    "lstrip_newlines": lambda text: text.lstrip("\n"),
    "rstrip_newlines": lambda text: text.rstrip("\n"),
    "json": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
}
TRIMMING = tuple(name for name in KNOWN if name != "json")
PROBES = (
    "two words",
    "  spaces before",
    "spaces behind \t ",
    "\n\nlines around\n",
    " \n both \n ",
    "a\n\nb  c\n\n\nd",
    '{"k": [1, "<b>&amp;\'"]}',
    "ends in a brace }",
    "ends in a stop.",
    "\u00e9\u00df\u4f60\u597d \U0001f600",
    "# title\n\n- item",
    "<tag>text</tag> rest",
    "a / b \\ c",
    "".join(map(chr, range(32, 127))),
    "a\rb\x0bc\x0cd \u200b\u200d\u2028 \ufeff\u00a0e\u0301 \u05d0 \u0661 ??",
    "long " * 1000 + "end",
)
THOUGHTS = ("<think>\nwhy\n</think>\n\nso", "<think>why</think>so", "before <think>x</think> behind")


def contextual(render: Renderer, kinds: Sequence[int], index: int, generate: bool) -> Callable[[str], str]:
    """A function from a content to what the template makes of it as message ``index`` of ``kinds``.

    It raises Displaced where the content changes what stands around it, so that it has no text of its own.
    """
    around, contents = segments(render, kinds, generate), marks(kinds, render.shape)
    start, end = around.spans[index]
    before, behind = around.text[:start], around.text[end:]

    def transform(content: str) -> str:
        marked = contents[index]
        told = content if isinstance(marked, str) else marked._replace(content=content)
        text = render(kinds, [*contents[:index], told, *contents[index + 1 :]], generate)
        if len(text) < len(before) + len(behind) or not (text.startswith(before) and text.endswith(behind)):
            raise Displaced(kinds[index], "one that changes the text around it", kinds)
        return text[len(before) : len(text) - len(behind)]

    return transform


def classify(transform: Callable[[str], str], probes: Sequence[str]) -> str:
    """The known transform that agrees on all probes, else ``RENDERED``; ``UNKNOWN`` if one changes the text around."""
    try:
        results = [transform(text) for text in probes]
    except (Displaced, RenderError):
        return UNKNOWN
    for name, known in KNOWN.items():
        if all(known(text) == result for text, result in zip(probes, results, strict=True)):
            return name
    return RENDERED


def keeps_blank(transform: Callable[[str], str], name: str) -> bool:
    """Whether blank contents are written as any other, between the same gaps; ``name`` is the transform's."""
    known = KNOWN.get(name)
    blanks = ("", " ", "\n", "\u00a0") if known else ("",)
    try:
        return all(transform(text) == (known(text) if known else "") for text in blanks)
    except (Displaced, RenderError):
        return False

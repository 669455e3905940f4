"""Texts that try a tokenizer."""

from hypothesis import strategies as st

ODD_TEXTS = (
    "", " ", "\n", "\r\n\n", "  a  b  ", "don 't .", "\x00\x1b\x7f", "é", "e\u0301",
    "\u2028\ufeff\u200d", "👩‍👩‍👧‍👦🇨🇭", "\ue000\U0010ffff",
)  # fmt: skip


def without_surrogates(min_size: int = 0) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size)


def text_with(fragments: list[str]) -> st.SearchStrategy[str]:
    """Texts in which the fragments turn up whole, doubled and cut, among other text."""
    cut = st.tuples(st.sampled_from(fragments), st.integers(0, 12), st.integers(0, 12)).map(
        lambda fragment: fragment[0][fragment[1] : len(fragment[0]) - fragment[2]]
    )
    piece = st.sampled_from(fragments) | cut | without_surrogates() | st.sampled_from(ODD_TEXTS)
    return st.lists(piece, max_size=8).map("".join)

"""The empty template, for base models."""

import dataclasses
from typing import Any

from statelesschat.core.config import ChatTemplate, Gap
from statelesschat.core.types import Role
from statelesschat.text.build import fingerprint, pad_id, piece_encoding
from statelesschat.text.probe import ASSISTANT, GENERATE, START, SYSTEM, TOOL, USER
from statelesschat.text.render import role_names


def raw_template(tokenizer: Any) -> ChatTemplate:
    """The empty template, for base models: contents follow one another, behind the tokenizer's BOS if it has one.

    There is no generation prompt and nothing closes an answer; ids are joined, never merged.
    """
    bos_id = tokenizer.bos_token_id
    bos, bos_ids = ("", ()) if bos_id is None else (tokenizer.bos_token, (int(bos_id),))
    kinds = (SYSTEM, USER, ASSISTANT, TOOL)
    gaps = [Gap(int(START), int(k), "", bos, "", (), bos_ids, ()) for k in kinds]
    gaps += [Gap(int(a), int(b), "", "", "", (), (), ()) for a in kinds for b in (*kinds, GENERATE)]
    eos = tokenizer.eos_token_id
    template = ChatTemplate(
        kind="RAW",
        gaps=tuple(gaps),
        roles=role_names(None),
        transforms=("identity",) * len(Role),
        nonempty=(False,) * len(Role),
        stop_ids=() if eos is None else (int(eos),),
        stop_id=-1,
        closing="",
        closing_ids=(),
        rest_core="",
        rest_core_ids=(),
        rest_lead="",
        shifts=(),
        pad_id=pad_id(tokenizer),
        vocab_size=len(tokenizer),
        source="",
        options=(),
        clock="1970-01-01T12:00:00",
        piece_encoding=piece_encoding(tokenizer, bos_ids),
        trusted_control_tokens=False,
        fingerprint=fingerprint(tokenizer),
    )
    return dataclasses.replace(template, report="class     RAW: contents follow one another as they are")

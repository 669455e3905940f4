"""The main job: what it compares, counts, writes, refuses and returns."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from statelesschat import Codec, Finish, Kind, Status, load_tokenizer, make_config
from statelesschat.__main__ import app
from statelesschat.core.types import Column, Count
from statelesschat.replay import InputError, Options, job, replay
from statelesschat.replay.driving import Driver, Prompts
from statelesschat.replay.planning import measured, scripts_of, widths_of
from statelesschat.replay.reading import records_of
from tests.vocab import QWEN3, qwen25

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
FIELDS = {
    "file", "tokenizer", "template_class", "conversations", "turns", "prompts", "tokens", "loss_tokens", "loss_share",
    "retokenised", "mismatches", "truncations", "conversations_per_s", "tokens_per_s", "compile_s", "drive_s",
    "check_s", "capacity", "batch", "device",
}  # fmt: skip


def _user(content):
    return {"role": "user", "content": content}


def _assistant(content):
    return {"role": "assistant", "content": content}


def _tool(content):
    return {"role": "tool", "content": content}


TALKS = [
    {"messages": [_user("a"), _assistant("b"), _user("c"), _assistant(" d\n"), _user("e")]},
    {"question": "2+3?", "answer": "5"},
    {"messages": [_user("x"), _assistant("y"), _tool("1"), _tool("2"), _assistant(""), _user("<|im_end|>")]},
    {"prompt": "only a prompt"},
    {"messages": [_assistant("hello"), _user("hi"), _assistant("<|im_start|>")]},
    {"turns": ["one", "two"]},
    {"messages": [{"role": "system", "content": "Ω"}, _user("🙂"), _assistant("é\u0301")]},
]
ANSWERS = ("b", " d\n", "5", "y", "", "<|im_start|>", "é\u0301")


def _write(tmp_path, *values, name="talks.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8")
    return str(path)


@pytest.fixture
def talks(tmp_path):
    return _write(tmp_path, *TALKS)


def _run(*arguments, input=None):
    return CliRunner().invoke(app, ["replay", *arguments], input=input)


def _load(path):
    with np.load(path) as file:
        return dict(file)


def _json(*arguments, code=0):
    result = _run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout), result.stderr


def test_json_has_the_documented_fields_and_the_counts_add_up(talks):
    summary, _ = _json(talks, "--batch", "4")
    assert set(summary) == FIELDS
    counts = {name: summary[name] for name in ("conversations", "turns", "prompts", "mismatches", "truncations")}
    assert counts == {"conversations": 7, "turns": 7, "prompts": 11, "mismatches": 0, "truncations": {}}
    assert summary["retokenised"] == 1  # the answer that looks like a control token
    assert summary["loss_tokens"] == sum(len(answer.encode()) + 1 for answer in ANSWERS)
    assert summary["loss_share"] == summary["loss_tokens"] / summary["tokens"]


def test_table_and_exit_code(talks):
    result = _run(talks, "--batch", "4")
    assert result.exit_code == 0
    for row in ("conversations", "turns", "share of loss tokens", "retokenised", "mismatches", "truncations", "/s"):
        assert row in result.stdout
    assert "replayed 7 of 7 conversations" in result.stderr


def test_replay_without_a_file_replays_the_sample_in_a_process_of_its_own():
    call = [sys.executable, "-m", "statelesschat", "replay"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "replay of sample.jsonl" in done.stdout and "EXACT" in done.stdout
    assert "Traceback" not in done.stderr


def test_standard_input_and_a_system_prompt(tmp_path):
    result = _run("-", "--json", "--system", "Be brief.", "--batch", "4", input=json.dumps(TALKS))
    assert result.exit_code == 0, result.output
    plain, _ = _json(_write(tmp_path, *TALKS), "--batch", "4")
    header = len("system\nBe brief.\n") + 2
    assert json.loads(result.stdout)["tokens"] == plain["tokens"] + 6 * header  # one brings its own


def test_answers_from_a_file(talks, tmp_path):
    answers = _write(tmp_path, None, None, None, "more", None, ["first", "second"], None, name="answers.jsonl")
    summary, _ = _json(talks, "--answers", answers, "--batch", "4")
    assert (summary["turns"], summary["prompts"], summary["mismatches"]) == (10, 12, 0)


def test_a_capacity_that_is_too_small_is_told_and_is_no_mismatch(tmp_path):
    long = "word " * 60
    path = _write(
        tmp_path,
        {"question": "a", "answer": "b"},
        {"question": "a", "answer": "word " * 48},
        {"question": "a", "answer": long},
        {"messages": [_user("a"), _assistant("b"), _user("word " * 45), _assistant("c")]},
        {"messages": [_user("a"), _assistant("b"), _user(long), _assistant("c")]},
        {"prompt": long},
    )
    out = tmp_path / "x.npz"
    summary, told = _json(path, "--capacity", "256", "--batch", "4", "--out", str(out))
    assert summary["mismatches"] == 0
    expected = {"ANSWER_TOO_WIDE": 1, "MESSAGE_TOO_WIDE": 1, "OVERFLOW": 2, "PROMPT_TOO_WIDE": 1}
    assert summary["truncations"] == expected
    assert f"PROMPT_TOO_WIDE {path}:6 (conversation 6), first prompt: the whole conversation takes 319 ids" in told
    assert f"{path}:3 (conversation 3), turn 1" in told and "raise --capacity" in told
    arrays = _load(out)
    assert arrays["line"].tolist() == [1, 2, 3, 4, 5]
    assert arrays["status"].tolist() == [0, Status.OVERFLOW, 0, Status.OVERFLOW, 0]
    assert arrays["finish"].tolist() == [Finish.STOP, Finish.LENGTH, 0, Finish.STOP, Finish.STOP]
    assert arrays["length"][1] == 256


def test_a_device_that_corrupts_a_token_is_found_out(talks, monkeypatch):
    true = Driver._tokens

    def corrupt(self, states):
        tokens = np.array(true(self, states))
        tokens[2, 20] = 65
        return tokens

    monkeypatch.setattr(Driver, "_tokens", corrupt)
    summary, told = _json(talks, "--batch", "4", code=1)
    assert summary["mismatches"] > 0
    assert "MISMATCH" in told and "first prompt: the prompt" in told and "device:" in told and "expected:" in told


def test_a_device_that_drops_an_append_is_found_out(talks, monkeypatch):
    reset = job.Driver.__init__

    def sabotaged(self, codec, batch):
        reset(self, codec, batch)
        append = self.jitted["append"]
        self.jitted["append"] = lambda states, block, where: append(states, block, where & False)

    monkeypatch.setattr(job.Driver, "__init__", sabotaged)
    summary, told = _json(talks, "--batch", "4", code=1)
    assert summary["mismatches"] > 0 and "the prompt" in told and "ILLEGAL_ROLE_ORDER" in told


def test_a_loss_mask_of_the_wrong_ids_is_found_out(talks, monkeypatch):
    true = job.Checker.ending
    monkeypatch.setattr(
        job.Checker, "ending", lambda self, end: true(self, end._replace(loss_mask=np.roll(end.loss_mask, 1, 1)))
    )
    _, told = _json(talks, "--batch", "4", code=1)
    assert "the ids the loss mask marks" in told


def test_npz_holds_what_a_trainer_needs(talks, tmp_path):
    out = tmp_path / "arrays.npz"
    summary, _ = _json(talks, "--batch", "4", "--out", str(out))
    arrays = _load(out)
    tokens, length, mask = arrays["tokens"], arrays["length"], arrays["loss_mask"]
    assert tokens.dtype == np.int32 and tokens.shape == mask.shape == (7, length.max())
    assert (length.sum(), mask.sum()) == (summary["tokens"], summary["loss_tokens"])
    assert arrays["line"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert arrays["turns"].tolist() == [2, 1, 2, 0, 1, 0, 1]
    assert arrays["messages"].tolist() == [5, 2, 6, 1, 3, 1, 3]
    finished = int(Finish.STOP)
    assert arrays["finish"].tolist() == [finished, finished, finished, 0, finished, 0, finished]
    assert arrays["columns"].tolist() == [column.name.lower() for column in Column]
    beyond = np.arange(tokens.shape[1]) >= length[:, None]
    assert (tokens[beyond] == arrays["pad_id"]).all() and not mask[beyond].any()
    assert (arrays["role_ids"][beyond] == -1).all() and (arrays["turn_ids"][beyond] == -1).all()
    assert set(np.unique(arrays["role_ids"][mask])) == {int(Kind.ASSISTANT)}
    tokenizer = load_tokenizer(None)
    assert str(tokenizer.decode(tokens[1, : length[1]])).endswith("<|im_start|>assistant\n5<|im_end|>")
    assert not list(tmp_path.glob("*.unfinished"))


def _scripted(values):
    records = records_of("\n".join(json.dumps(value) for value in values), "x")
    tokenizer = load_tokenizer(None)
    codec = Codec(tokenizer, make_config(tokenizer, capacity=320, max_messages=9, max_message_len=64, max_turns=4))
    return codec, measured(scripts_of(records, None), codec.writer, "x")


def test_one_trace_for_all_batches_the_ragged_last_one_included():
    codec, scripts = _scripted(TALKS)
    driver = Driver(codec, 3)
    before = {name: function._cache_size() for name, function in driver.jitted.items()}  # type: ignore[attr-defined]
    driver.warm_up()
    for start in range(0, len(scripts), 3):
        list(driver.drive(scripts[start : start + 3]))
    after = {name: function._cache_size() for name, function in driver.jitted.items()}  # type: ignore[attr-defined]
    assert all(after[name] - before[name] <= 1 for name in before), (before, after)


def test_rows_that_do_not_act_keep_their_conversation():
    codec, scripts = _scripted([TALKS[2], TALKS[3]])
    seen = [look for look in Driver(codec, 3).drive(scripts) if isinstance(look, Prompts)]
    first, *later = seen
    assert [look.ready for look in seen] == [[0, 1], [0], [0]]
    assert all((look.tokens[1] == first.tokens[1]).all() for look in later)
    assert first.counts[2, Count.TURN_LIMIT] == 0  # fills the batch up


def test_widths_come_from_the_data():
    _, scripts = _scripted(TALKS)
    widths = widths_of(scripts, None)
    assert widths.capacity % 128 == 0 and widths.capacity >= max(script.total for script in scripts)
    assert widths.max_messages == 7 and widths.max_turns == 3
    assert max(widths_of(scripts, 50)[2:5]) <= 50


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent.jsonl"], "absent.jsonl: cannot be read"),
        (["."], "cannot be read"),
        (["FILE", "--answers", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["FILE", "--chat-template", "absent.jinja"], "absent.jinja: cannot be read"),
        (["FILE", "--tokenizer", "./absent"], "there is no tokenizer folder"),
        (["FILE", "--out", "x.json"], "name it x.npz"),
        (["FILE", "--out", "absent/x.npz"], "the folder absent does not exist"),
        (["FILE", "--capacity", "20", "--system", "A long system prompt."], "raise max_prompt_len"),
        (["FILE", "--capacity", "0"], "capacity"),
        (["FILE", "--batch", "none"], "batch"),
        (["FILE", "--history", "no"], "history"),
        (["-", "--answers", "-"], "give --answers a file"),
    ],
)
def test_bad_arguments_exit_with_2_and_no_traceback(talks, arguments, told):
    result = _run(*(talks if a == "FILE" else a for a in arguments), input='{"prompt": "a"}')
    assert result.exit_code == 2, result.output
    assert told in result.stderr and "Traceback" not in result.output
    assert result.stdout == ""


def test_bad_lines_exit_with_2(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    result = _run(str(path), "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{path}:2: not JSON") and result.stderr.count("\n") == 1


def test_a_refused_template_shows_its_witness(talks, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(QWEN3)
    result = _run(talks, "--chat-template", str(template))
    assert result.exit_code == 2
    assert result.stderr.startswith("FROZEN_HISTORY") and "witness" in result.stderr
    assert "--history frozen" in result.stderr


def test_a_conversation_the_template_cannot_write_names_its_line(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    talk = {"messages": [_user("a"), _assistant("b"), _tool("c"), _assistant("d")]}
    result = _run(_write(tmp_path, {"prompt": "a"}, talk, talk), "--chat-template", str(template))
    assert result.exit_code == 2
    assert "talks.jsonl:2: this template cannot write a tool message" in result.stderr
    assert "(1 more conversations fail as well)" in result.stderr


def test_frozen_history_compares_what_stands_behind_the_last_answer(talks):
    tokenizer = qwen25(QWEN3)
    summary, tally = replay(Options(file=talks, tokenizer=tokenizer, history="frozen", batch=4))
    assert (summary.template_class, summary.mismatches, summary.prompts) == ("FROZEN_HISTORY", 0, 11)
    assert tally.cuts == []


def test_a_real_vocabulary_counts_retokenised_answers(tmp_path):
    path = _write(
        tmp_path,
        {"question": "a", "answer": "\n\nb"},  # the header's newline would merge with these
        {"question": "a", "answer": "b"},
        {"messages": [_user("a"), _assistant(" b\n"), _user(" c}"), _assistant("d."), _user("\n")]},
    )
    summary, _ = replay(Options(file=path, tokenizer=qwen25(), batch=3))
    assert (summary.mismatches, summary.retokenised, summary.turns) == (0, 1, 4)


def test_too_little_memory_says_what_to_lower(talks, monkeypatch):
    def exhausted(self):
        raise MemoryError

    monkeypatch.setattr(job.Driver, "warm_up", exhausted)
    with pytest.raises(InputError, match="lower --batch or --capacity"):
        replay(Options(file=talks))


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_an_interrupt_leaves_no_traceback():
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import statelesschat.replay.job as job; from statelesschat.__main__ import main\n"
        "def wait(*_):\n    import time; print('waiting', flush=True); time.sleep(60)\n"
        "job.Driver.warm_up = wait; sys.argv = ['statelesschat', 'replay']; main()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in told and "Traceback" not in told


def _shared(name):
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the folder `shared/data` beside the checkout")
    return path


def test_gsm8k_solutions(tmp_path):
    lines = _shared("gsm8k_model_solutions_1200.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(lines[::8]), encoding="utf-8")
    summary, _ = replay(Options(file=str(path), batch=64))
    assert (summary.conversations, summary.turns, summary.prompts) == (150, 150, 150)
    assert (summary.mismatches, summary.retokenised, summary.truncations) == (0, 0, {})


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [None, "qwen"])
def test_gsm8k_solutions_all_lines(tokenizer):
    path = _shared("gsm8k_model_solutions_1200.jsonl")
    summary, _ = replay(Options(file=str(path), tokenizer=qwen25() if tokenizer else None))
    assert (summary.conversations, summary.mismatches, summary.truncations) == (1200, 0, {})


@pytest.mark.parametrize("tokenizer", [None, "qwen"])
def test_mt_bench_with_made_up_answers(tmp_path, tokenizer):
    path = _shared("mt_bench_questions.jsonl")
    openings = ("Sure! Here it is:\n\n1. one\n2. two 🙂", " leading space", "\n\nnew lines\n", "", '{"a": 1}')
    questions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    turns = [[openings[i % 5], f"{openings[i % 4]}{i}"] for i in range(len(questions))]
    lines = [
        {"question_id": question["question_id"], "choices": [{"index": 0, "turns": texts}]}
        for question, texts in zip(questions, turns, strict=True)
    ]
    answers = _write(tmp_path, *lines, name="answers.jsonl")
    summary, _ = replay(Options(file=str(path), tokenizer=qwen25() if tokenizer else None, answers=answers))
    assert (summary.turns, summary.prompts, summary.mismatches, summary.truncations) == (160, 160, 0, {})
    assert (summary.retokenised > 0) == (tokenizer == "qwen")

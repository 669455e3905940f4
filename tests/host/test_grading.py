import concurrent.futures
import functools
import gc
import importlib
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from statelesschat.host import processes
from statelesschat.host.grading import Grade, GraderError, GraderPool
from statelesschat.host.session import Outcome

GRADERS = r'''
import os, re, signal, struct, subprocess, sys, time

def equal(response, reference):
    return response == reference

def act(response, reference):
    """Does what the response says."""
    if response == "hang":
        time.sleep(1000)
    if response == "spin":  # a regular expression, which keeps the interpreter's lock
        re.match(r"(a+)+$", "a" * 60 + "b")
    if response == "exit":
        os._exit(3)
    if response == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if response == "leave":
        sys.exit("done")
    if response == "raise":
        raise RuntimeError("no idea")
    if response == "silent":
        raise Silent
    if response == "print":
        print("garbage" * 10000, flush=True)
        os.write(1, b"\0" * 100000)
        sys.stdin.read()
    if response == "child":
        subprocess.Popen(["sleep", "1000"])
        time.sleep(1000)
    if response == "orphan":
        os.fork() or time.sleep(1000)
        os._exit(5)
    if response == "forge":
        said = b'["reward", 9.0]'
        for name in os.listdir("/proc/self/fd"):
            if os.readlink("/proc/self/fd/" + name).startswith("socket"):
                os.write(int(name), struct.pack("!Q", len(said)) + said)
        return 0.0
    if response == "garble":
        for name in os.listdir("/proc/self/fd"):
            try:
                os.write(int(name), b"garbage!" * 10)
            except OSError:
                pass
    if response == "length":
        return float(reference)
    if response == "return":
        return reference
    if response == "nan":
        return float("nan")
    if response == "ignores":
        return signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if response == "modules":
        return any(name.partition(".")[0] in ("jax", "statelesschat") for name in sys.modules)
    return 1.0

def size(response, reference):
    return len(response) == reference

def scaled(response, reference, *, by=1.0):
    return by * len(response)

class Silent(Exception):
    def __str__(self):
        raise ValueError

def slow(response, reference):
    time.sleep(0.01)
    return float(response)

wrapped = lambda response, reference: 1.0
'''


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("graders")
    (where / "toy_graders.py").write_text(GRADERS)
    (where / "broken_grader.py").write_text("def grade(response, reference):\n    return 1.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(where))
        yield where


@pytest.fixture(scope="module")
def toy(folder):
    return importlib.import_module("toy_graders")


@pytest.fixture
def pool(toy):
    with GraderPool(toy.act, workers=2, timeout_s=60.0) as made:
        yield made


def living(pool):
    return {worker._process.pid for worker in pool._living}


def gone(pids, seconds=30.0):
    until = time.monotonic() + seconds
    while alive := [pid for pid in pids if processes.process(pid)]:
        if time.monotonic() > until:
            return alive
        time.sleep(0.05)
    return []


def outcomes(grades):
    return [grade.outcome.name for grade in grades]


def test_rows_come_back_in_their_order(toy):
    with GraderPool(toy.slow, workers=3) as pool:
        grades = pool.grade([str(row) for row in range(50)], [None] * 50)
        assert len(living(pool)) == 3
    assert [grade.reward for grade in grades] == list(range(50))
    assert all(grade.outcome is Outcome.OK and grade.detail == "" and grade.ms > 0 for grade in grades)


def test_no_rows_start_no_workers(pool):
    assert pool.grade([], []) == []
    assert not living(pool)


def test_a_worker_is_started_for_a_row_only(pool):
    assert pool.grade(["ok"], [None])[0].reward == 1.0
    assert len(living(pool)) == 1


def test_a_worker_imports_neither_jax_nor_the_package(pool):
    assert pool.grade(["modules"], [None])[0] == Grade(0.0, ms=pytest.approx(0, abs=1e9))


def test_ctrl_c_is_not_for_workers(pool):
    assert pool.grade(["ignores"], [None])[0].reward == 1.0
    (pid,) = living(pool)
    assert os.getpgid(pid) == pid


@pytest.mark.parametrize("how", ["hang", "spin"])
def test_what_hangs_is_killed_at_its_deadline(toy, how):
    with GraderPool(toy.act, workers=2, timeout_s=1.0) as pool:
        grades = pool.grade(["ok", how, "ok", "ok", "ok"], [None] * 5)
        assert outcomes(grades) == ["OK", "TIMEOUT", "OK", "OK", "OK"]
        assert grades[1].reward == 0.0 and "longer than 1 s" in grades[1].detail and grades[1].ms >= 1000


def test_the_deadline_counts_from_the_start_of_the_row(toy):
    with GraderPool(toy.act, workers=1, timeout_s=1.0) as pool:
        assert outcomes(pool.grade(["hang", "hang", "ok"], [None] * 3)) == ["TIMEOUT", "TIMEOUT", "OK"]


@pytest.mark.parametrize(("how", "said"), [("exit", "status 3"), ("segfault", "SIGSEGV"), ("orphan", "status 5")])
def test_what_crashes_costs_its_row_only(toy, how, said):
    with GraderPool(toy.act, workers=1, timeout_s=60.0) as pool:
        grades = pool.grade(["ok", how, "ok", how, "ok"], [None] * 5)
        assert outcomes(grades) == ["OK", "DEAD", "OK", "DEAD", "OK"]
        assert said in grades[1].detail and grades[1].reward == 0.0


def test_a_worker_killed_between_rows_is_replaced_unseen(toy):
    with GraderPool(toy.act, workers=1) as pool:
        pool.grade(["ok"], [None])
        (before,) = living(pool)
        os.kill(before, signal.SIGKILL)
        assert gone([before]) == []
        assert outcomes(pool.grade(["ok"], [None])) == ["OK"]
        assert before not in living(pool)


@pytest.mark.parametrize(
    ("response", "reference", "said"),
    [
        ("raise", None, "RuntimeError: no idea"),
        ("leave", None, "SystemExit: done"),
        ("silent", None, "Silent"),
        ("nan", None, "returned nan"),
        ("return", float("inf"), "returned inf"),
        ("return", None, "returned None"),
        ("return", "1.0", "returned '1.0'"),
        ("return", [1.0], "returned [1.0]"),
        ("return", 10**400, "finite number"),
        ("return", 1j, "returned 1j"),
    ],
)
def test_what_raises_or_returns_no_number_is_a_fault(pool, response, reference, said):
    grades = pool.grade(["ok", response, "ok"], [None, reference, None])
    assert outcomes(grades) == ["OK", "FAULT", "OK"]
    assert said in grades[1].detail and grades[1].reward == 0.0


def test_bools_and_numpy_numbers_are_rewards(pool):
    np = pytest.importorskip("numpy")
    grades = pool.grade(["return"] * 4, [True, 2, np.float32(0.5), np.array(3)])
    assert [grade.reward for grade in grades] == [1.0, 2.0, 0.5, 3.0]
    assert all(type(grade.reward) is float for grade in grades)


def test_what_is_printed_goes_to_stderr(pool, capfd):
    assert outcomes(pool.grade(["print", "ok", "print"], [None] * 3)) == ["OK"] * 3
    out, err = capfd.readouterr()
    assert out == "" and "garbagegarbage" in err


def test_garbage_on_the_line_ends_the_worker(toy):
    with GraderPool(toy.act, workers=1) as pool:
        assert outcomes(pool.grade(["garble", "ok"], [None] * 2)) == ["DEAD", "OK"]


def test_a_reply_too_many_is_not_that_of_the_next_row(toy):
    with GraderPool(toy.act, workers=1) as pool:
        assert [grade.reward for grade in pool.grade(["forge", "ok", "ok"], [None] * 3)][1:] == [1.0, 1.0]


def test_what_a_grader_started_ends_with_it(toy):
    with GraderPool(toy.act, workers=1, timeout_s=1.5) as pool:
        future = pool.submit("child", None)
        children = []
        while not children and not future.done():
            table = processes.table()
            children = [each.pid for pid in living(pool) for each in processes.descendants(pid, table)]
            time.sleep(0.02)
        assert future.result().outcome is Outcome.TIMEOUT
        assert gone(children) == []


def test_a_huge_response_and_one_of_broken_text(toy):
    with GraderPool(toy.size, workers=2, timeout_s=60.0) as pool:
        texts = ["x" * (32 << 20), "\ud800\0\n", ""]
        assert [grade.reward for grade in pool.grade(texts, [32 << 20, 3, 0])] == [1.0, 1.0, 1.0]


def test_partials_carry_their_arguments(toy):
    with GraderPool(functools.partial(toy.scaled, by=0.5), workers=1) as pool:
        assert pool.grade(["ab"], [None])[0].reward == 1.0


def test_many_threads_at_once(toy):
    with GraderPool(toy.slow, workers=2) as pool, concurrent.futures.ThreadPoolExecutor(6) as threads:
        rows = [[str(8 * thread + row) for row in range(8)] for thread in range(6)]
        graded = list(threads.map(lambda texts: pool.grade(texts, texts), rows))
    assert [[str(int(grade.reward)) for grade in grades] for grades in graded] == rows


def test_submit_gives_a_future(toy):
    with GraderPool(toy.act, workers=1, timeout_s=60.0) as pool:
        first, second = pool.submit("ok", None), pool.submit("raise", None)
        assert first.result(60).reward == 1.0
        assert second.result(60).outcome is Outcome.FAULT


def test_rows_can_be_cancelled_until_they_run(toy):
    with GraderPool(toy.act, workers=1, timeout_s=60.0) as pool:
        running, waiting = pool.submit("hang", None), pool.submit("ok", None)
        assert waiting.cancel()
        pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            running.result(60)


def test_close_leaves_no_process_and_can_be_called_twice(toy):
    pool = GraderPool(toy.act, workers=2, timeout_s=600.0)
    pool.grade(["ok"] * 8, [None] * 8)
    pids = living(pool)
    hanging, queued = [pool.submit("spin", None) for _ in range(2)], pool.submit("ok", None)
    while not all(future.running() for future in hanging):
        time.sleep(0.01)
    pids |= living(pool)
    pool.close()
    pool.close()
    assert pids and not living(pool)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)  # no zombies either
    for future in [*hanging, queued]:
        with pytest.raises(RuntimeError, match="closed"):
            future.result(0)
    for use in (lambda: pool.grade(["a"], ["b"]), lambda: pool.submit("a", "b")):
        with pytest.raises(RuntimeError, match="closed; make a new one"):
            use()
    assert not [each for each in threading.enumerate() if each.name.startswith("statelesschat-grading")]


def test_close_from_another_thread_ends_a_grade(toy):
    pool = GraderPool(toy.act, workers=1, timeout_s=600.0)
    threading.Timer(1.0, pool.close).start()
    with pytest.raises(RuntimeError, match="closed"):
        pool.grade(["hang"] * 3, [None] * 3)


def test_no_open_files_are_left(toy):
    with GraderPool(toy.act, workers=1) as pool:  # the first starts threads of the library
        pool.grade(["ok"], [None])
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with GraderPool(toy.act, workers=2) as pool:
            pool.grade(["ok", "exit"] * 2, [None] * 4)
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


class Held:
    def __call__(self, response, reference):
        return 1.0

    def method(self, response, reference):
        return 1.0


def test_graders_that_cannot_reach_a_worker_are_refused(toy):
    def local(response, reference):
        return 1.0

    for grader, error, said in [
        (lambda response, reference: 1.0, ValueError, "top level of a module"),
        (local, ValueError, "test_graders_that_cannot_reach_a_worker_are_refused.<locals>.local"),
        (toy.wrapped, ValueError, "functools.partial"),
        (functools.partial(local), ValueError, "top level"),
        (functools.partial(toy.scaled, by=lambda: 1), ValueError, "pickled"),
        (Held().method, ValueError, "under its own name"),
        (Held(), TypeError, "function"),
        ("equal", TypeError, "function"),
    ]:
        with pytest.raises(error, match=re.escape(said)):
            GraderPool(grader)


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"workers": 1.5}, {"workers": True}, {"timeout_s": 0}, {"start_timeout_s": float("nan")}]
)
def test_numbers_out_of_range_are_refused(toy, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GraderPool(toy.act, **wrong)


def test_rows_that_cannot_be_sent_are_refused(pool):
    with pytest.raises(ValueError, match="2 responses and 1 references"):
        pool.grade(["a", "b"], ["a"])
    with pytest.raises(TypeError, match="list of texts"):
        pool.grade("ab", ["a", "b"])
    with pytest.raises(TypeError, match="a response is a bytes"):
        pool.grade([b"a"], ["a"])
    with pytest.raises(TypeError, match="cannot be pickled"):
        pool.grade(["a"], [lambda: 1])
    assert not living(pool)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("def grade(:", "SyntaxError"),
        ("import os; os._exit(7)", "status 7"),
        ("pass", "has no attribute 'grade'"),
    ],
)
def test_a_grader_that_does_not_load_is_an_error(folder, text, said):
    path = folder / "broken_grader.py"
    path.write_text("def grade(response, reference):\n    return 1.0\n")
    sys.modules.pop("broken_grader", None)
    importlib.invalidate_caches()
    grader = importlib.import_module("broken_grader").grade
    path.write_text(text)
    with GraderPool(grader, workers=2) as pool:
        for _ in range(2):  # and again at once
            with pytest.raises(GraderError, match=re.escape(said)):
                pool.grade(["a"] * 20, ["b"] * 20)
    assert not living(pool)


def test_a_grader_that_loads_for_ever_is_an_error(folder):
    path = folder / "endless_grader.py"
    path.write_text("import os, time\ndef grade(a, b): ...\nif 'STATELESSCHAT_GRADER' in os.environ: time.sleep(999)\n")
    importlib.invalidate_caches()
    grader = importlib.import_module("endless_grader").grade
    with GraderPool(grader, workers=1, start_timeout_s=1.0) as pool:
        with pytest.raises(GraderError, match="start_timeout_s=1"):
            pool.grade(["a"] * 3, ["b"] * 3)
        assert not living(pool)


def test_a_forked_child_does_not_use_the_pool(toy, monkeypatch):
    with GraderPool(toy.act, workers=1) as pool:
        pool.grade(["ok"], [None])
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            pool.close()
            with pytest.raises(RuntimeError, match="forked"):
                pool.submit("ok", None)
        assert outcomes(pool.grade(["ok"], [None])) == ["OK"]


def test_grades_are_plain_values():
    grade = Grade(0.5, Outcome.OK, "", 1.0)
    assert pickle.loads(pickle.dumps(grade)) == grade


PROGRAM = """
import sys, time
from statelesschat.host.grading import GraderPool

def grade(response, reference):
    return len(response) == reference

{guard}
    sys.path.insert(0, sys.argv[1])
    import toy_graders
    with GraderPool(grade, workers=1) as pool:
        print(pool.grade(["abc"], [3])[0], flush=True)
    pool = GraderPool(toy_graders.act, workers=2, timeout_s=1000.0)
    pool.grade(["ok"] * 4, [None] * 4)
    rows = [pool.submit(how, None) for how in ("hang", "spin")]
    while not all(row.running() for row in rows):
        time.sleep(0.01)
    time.sleep(0.5)
    print(*(worker._process.pid for worker in pool._living), flush=True)
    if sys.argv[2:] == ["wait"]:
        time.sleep(1000)
"""


def program(folder, *arguments, guard='if __name__ == "__main__":'):
    path = folder / "program"  # its name does not end in .py, as that of a script may
    path.write_text(textwrap.dedent(PROGRAM).format(guard=guard))
    argv = [sys.executable, str(path), str(folder), *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


ENDINGS = [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]


@pytest.mark.parametrize("number", ENDINGS)
def test_a_program_that_is_ended_leaves_no_workers(folder, number):
    with program(folder, "wait") as started:
        assert started.stdout.readline().startswith("Grade(reward=1.0")  # of a grader in the main file
        pids = [int(pid) for pid in started.stdout.readline().split()]
        assert len(pids) == 2 and all(processes.process(pid) for pid in pids)
        started.send_signal(number)
        started.communicate(timeout=60)
    assert started.returncode != 0
    assert gone(pids) == []


def test_a_program_that_ends_without_closing_leaves_no_workers(folder):
    with program(folder) as started:
        out, err = started.communicate(timeout=60)
    assert started.returncode == 0, err
    pids = [int(pid) for pid in out.splitlines()[1].split()]
    assert len(pids) == 2 and gone(pids) == []


def test_a_main_file_without_a_guard_is_an_error(folder):
    with program(folder, guard="if True:") as started:
        _, err = started.communicate(timeout=120)
    assert started.returncode != 0
    assert 'under if __name__ == "__main__":' in err


def test_graders_of_a_prompt_are_refused():
    code = """
        from statelesschat.host.grading import GraderPool
        def grade(response, reference):
            return 1.0
        GraderPool(grade)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)
    assert "put it in a file and import it" in done.stderr

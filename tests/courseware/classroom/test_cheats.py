"""Ways round the marks: each earns nothing, reads nothing, changes nothing, and the next answer is marked.

They are tried without the rules of the class, which only teach. What stops them is that an answer runs in the worker,
in bubblewrap, and that all that counts is with the grader. Without bubblewrap these tests fail, and say so.
"""

import contextlib
import inspect
import os
import shutil
import socket
import sysconfig
import threading
import time

import numpy as np
import pytest

from courseware.checks import cuda_calls, grade, registry
from courseware.checks.kernel_calls import is_kernel
from courseware.classroom import marking, remote_answer
from courseware.simulators.cuda_emulator import compiling, runner
from courseware.worker import running, sandbox

SECRET = "4f1d2c"  # in files and in the environment of the grader; no message may hold it

# Messages on all descriptors, which those of the channel are among.
SENDING = """
    import json, os, pickle, struct
    def framed(text):
        return struct.pack("<II", len(text), 0) + text
    def message(*parts):
        return framed(json.dumps(["list", list(parts)]).encode())
    for each in [MESSAGES]:
        for i in range(3, 20):
            try:
                os.write(i, each)
            except OSError:
                pass"""
FORGED = {
    "a result before the call": """message("done", True, ["list", []], None, "")""",
    "no message": "b'passed' * 1000",
    "a message too long": r"b'\xff' * 8",
    "messages nested without end": "framed(b'[' * 10**6)",
    "operations that are not offered": """*(
        message("ask", ["list", [["list", [target, operation, ["list", []], ["dict", []], 7]]]])
        for target in (None, 0, 1, -1, "x")
        for operation in ("__class__", "__init__", "mark", "release"))""",
    "a pickle as a message": "framed(pickle.dumps(print))",
}
# By kind. In place of the body of stable_softmax(x): where the way round leads nowhere, x comes back, which is wrong.
ANSWERS = {
    "reaching the reference or the grader": {
        "builtins rebound by a pattern": """
            match np:
                case object(__builtins__=b):
                    return b["__import__"]("course_lib.reference").reference.stable_softmax(x, axis)""",
        "the course's folder on the path": """
            import sys
            sys.path[:0] = ["COURSE", "PACKAGES"]
            from course_lib.reference import stable_softmax as s
            return s(x, axis)"""},
    "a file read": {
        "its path and the root by /proc": """
            import glob
            found = glob.glob("SECRET") + glob.glob("/proc/self/root" + "SECRET")
            raise ValueError([open(path).read() for path in found])"""},
    "a file written": {
        "a disk filled": """
            for i in range(10**6):
                open(f"/tmp/{i}", "w").write("x" * 10**6)""",
        "a file changed": "open('SECRET', 'w').write('1')",
        "a folder deleted": "import shutil; shutil.rmtree('FOLDER'); shutil.rmtree('/', ignore_errors=True)"},
    "the environment": {"the environment": "import os; raise ValueError(str(dict(os.environ)))"},
    "the network": {
        "the network": """
            import socket
            raise ValueError(socket.create_connection(("127.0.0.1", PORT), 1).recv(9))"""},
    "processes": {
        "a fork bomb": """
            import os
            while True:
                os.fork()""",
        "signals to everyone": "import os; os.kill(-1, 9)"},
    "memory and limits": {
        "the limits lifted": """
            import resource
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
            np.ones(2 * 10**9)""",
        "a result of 1 GB": "return np.zeros(10**8)"},
    "output": {
        "output on every descriptor": """
            import os
            for i in range(3):
                os.write(i, b"x" * 10**7)""",
        "an exception of 30 MB": "raise ValueError('x' * 30 * 10**6)",
        "halves of characters": r"print('\ud800'); raise ValueError('\udfff')"},
    "time": {
        "the alarm switched off": """
            import signal
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            while True:
                pass""",
        "the process ended": "import os; os._exit(0)"},
    "messages": {way: SENDING.replace("MESSAGES", text) for way, text in FORGED.items()},
    "results that lie": {
        "an array that equals everything": """
            class Any(np.ndarray):
                __eq__ = __ne__ = __le__ = __lt__ = __ge__ = __gt__ = lambda self, other: np.True_
                __sub__ = __rsub__ = lambda self, other: np.zeros(1)
            return x.view(Any)""",
        "an object that says it is an array": """
            class Right:
                __class__ = np.ndarray
                shape, dtype, ndim = x.shape, x.dtype, x.ndim
                __eq__ = __le__ = lambda self, other: True
            return Right()""",
        "an array of objects": "return np.array([lambda: 0] * x.size, object).reshape(x.shape)",
        "a list that holds itself": "y = []; y.append(y); return y",
        "a type with a name that is markup": "return type('<script>alert(1)</script>', (), {})()"},
    "functions replaced": {
        "the worker's functions replaced": """
            import courseware.worker.running as running, courseware.worker.ipc as channel, json
            running.run = lambda *a: None
            json.dumps = lambda *a: '["list", ["done", true, ["list", []], null, "passed"]]'"""},
}  # fmt: skip


def tried(ways, most):
    """The first few, unless all are asked for."""
    return pytest.mark.parametrize("way", list(ways)[: None if os.environ.get("COURSEWARE_ALL_CHEATS") else most])


# One of each kind comes first.
EVERY_WAY = {way: body for of_a_kind in ANSWERS.values() for way, body in of_a_kind.items()}
IN_TURN = list(dict.fromkeys([*(next(iter(of_a_kind)) for of_a_kind in ANSWERS.values()), *EVERY_WAY]))
# What these are stopped by is the sandbox.
REACHING = ["builtins rebound by a pattern", "its path and the root by /proc"]


def cheating(body, tmp_path, exercise_id="03.stable_softmax"):
    answer = registry.find(exercise_id).answer
    parameters = str(inspect.signature(answer))[1:-1]
    text = body.replace("SECRET", str(tmp_path / "secret")).replace("COURSE", str(sandbox.COURSE))
    text = text.replace("PORT", (tmp_path / "port").read_text())
    text = text.replace("FOLDER", str(tmp_path)).replace("PACKAGES", sysconfig.get_path("purelib"))
    body = inspect.cleandoc("\n" + text).replace("\n", "\n    ")
    return f"def {answer.__name__}({parameters}):\n    {body}\n    return {parameters.split(',')[0]}\n"


def graded(exercise_id, source, seed=None):
    exercise = registry.find(exercise_id)
    answer = remote_answer.RemoteAnswer([(exercise_id, source)], exercise.answer.__name__, is_kernel(exercise), True)
    with contextlib.closing(answer):
        return grade(exercise_id, answer, seed=seed)


def tell_the_secret(server):
    with contextlib.suppress(OSError):
        while True:
            with server.accept()[0] as connection:
                connection.send(SECRET.encode())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a secret, as the instructor's is, and the secret in the environment."""
    assert shutil.which("bwrap"), "these tests need bubblewrap: apt-get install bubblewrap"
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
        threading.Thread(target=tell_the_secret, args=[server], daemon=True).start()
        yield tmp_path
    assert (tmp_path / "secret").read_text() == SECRET


@tried(IN_TURN, len(ANSWERS) - 1)  # what replaces the worker's functions is ended after 40 s
def test_a_way_round_earns_nothing(way, folder):
    result = graded("03.stable_softmax", cheating(EVERY_WAY[way], folder))
    assert result.attempted and not result.passed
    assert SECRET not in result.message + result.page
    assert len(result.message.encode()) < 20_000 and "<script" not in result.page


def test_an_answer_that_waits_is_not_marked(folder, monkeypatch):
    assert running.run(lambda: time.sleep(0.3) or 42, 0.1).returned == 42, "by the worker's limit it may wait"
    monkeypatch.setattr(running, "CLOCK_LIMITS", 0.5)
    with pytest.raises(running.MachineBusy):
        graded("03.stable_softmax", cheating("import time; time.sleep(1000)", folder))


@pytest.mark.parametrize("way", REACHING)
def test_without_the_sandbox_it_would_earn_the_points_or_tell_the_secret(way, folder):
    source = cheating(EVERY_WAY[way], folder)
    answer = remote_answer.RemoteAnswer([("03.stable_softmax", source)], "stable_softmax", False, sandboxed=False)
    result = grade("03.stable_softmax", answer)
    answer.close()
    assert result.passed or SECRET in result.message


def test_without_bubblewrap_nothing_is_marked(monkeypatch):
    sandbox.bubblewrap.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(sandbox.NoSandbox, match="apt-get install bubblewrap"):
        marking.mark({}, {})


KERNEL = """
@triton.jit
def row_softmax(x_ptr, stride_xm, stride_xn, out_ptr, stride_om, stride_on, n_cols, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * stride_xm + offs * stride_xn, mask=offs < n_cols, other=-float("inf"))
    {body}
    tl.store(out_ptr + tl.program_id(0) * stride_om + offs * stride_on, p, mask=offs < n_cols)
"""
KERNELS = {
    "one body for the compiler, another for the interpreter": """
    if isinstance(tl.cdiv, triton.JITFunction):
        p = x
    else:
        exec("e = np.exp(x.handle.data - x.handle.data.max()); x.handle.data[:] = e / e.sum()")
        p = x""",
    "NumPy behind a tensor": "p = x; e = np.exp(x.handle.data - x.handle.data.max()); p.handle.data[:] = e / e.sum()",
    "a file read by a kernel": "p = x + float(open('SECRET').read())",
    "Python for the compiler": "p = tl.core.inspect.sys.modules['os']._exit(0)",
}


@tried(KERNELS, 2)
def test_a_kernel_is_compiled_before_it_is_interpreted_and_finds_no_builtin_that_executes(way, folder):
    source = KERNEL.format(body=KERNELS[way].replace("SECRET", str(folder / "secret")))
    result = graded("07.row_softmax", source)
    assert not result.passed and SECRET not in result.message
    assert "NameError" in result.message if "exec" in KERNELS[way] else "compiler refuses it" in result.message


def test_the_rules_are_for_kernels_too():
    exercise_id, source = "07.row_softmax", KERNEL.format(body="p = tl.softmax(x)")
    assert "rule of the class" in marking.outcome_of(exercise_id, [(exercise_id, source)], None, True)["message"]


STRUCTURE = {
    "the reads are not counted": ("05.online_attention", """
        if type(K) is not np.ndarray:
            K._reads[:] = V._reads[:] = K.most_at_once = V.most_at_once = 1
            K, V = K._array, V._array
        s = K @ q / np.sqrt(len(q))
        p = np.exp(s - s.max())
        return p @ V / p.sum()"""),
    "names of empty files": ("05.online_normalizer", """
        import os
        m, l = -np.inf, 0.0
        for n, s in enumerate(stream):
            os.close(os.open(f"/tmp/{n} {s}", os.O_CREAT))
            m = max(m, s)
        for file in os.scandir("/tmp"):
            os.unlink(file)
            l += np.exp(float(file.name.split()[1]) - m) if m > -np.inf else 0.0
        return m, l"""),
    "the arrays behind the memory machine": ("06.tiled_attention", "O._array[:] = V._array.mean(axis=0)"),
    "a tile of a terabyte": ("06.tiled_attention", "machine.full((10**6, 10**6), 0.0)"),
    "memory not counted by the worker": ("05.online_normalizer", """
        import tracemalloc
        tracemalloc.get_traced_memory = lambda: (0, 0)
        scores = list(stream)
        tracemalloc.stop()
        m = max(scores, default=-np.inf)
        return m, float(np.exp(np.array(scores) - (0 if m == -np.inf else m)).sum())"""),
    "memory that an earlier call took": ("05.online_normalizer", """
        kept, n = vars(np).setdefault("kept", np.zeros(1 << 22)), 0
        kept[:1 << 16] = -np.inf
        for n, kept[n] in enumerate(stream):
            pass
        m = kept[:n + 1].max()
        return m, 0.0 if m == -np.inf else float(np.exp(kept[:n + 1] - m).sum())"""),
}  # fmt: skip


@tried(STRUCTURE, 4)  # those that take memory take seconds
def test_what_an_answer_reads_and_keeps_is_the_judges_to_count(way, folder):
    exercise_id, body = STRUCTURE[way]
    result = graded(exercise_id, cheating(body, folder, exercise_id))
    assert result.attempted and not result.passed


CUDA = """
extern "C" long write(int, const void *, unsigned long);
extern "C" int ftruncate(int, long);
extern "C" void _exit(int);
__global__ void cheat(float *out, int n) {{ {} _exit(0); }}
"""
PROGRAMS = {
    "zeros where the grader reads the report": ("ftruncate(0, 9 << 20);", "status 0"),
    "a disk filled": ("static char much[1 << 20]; while (write(0, much, 1 << 20) > 0) {}", "ended with status"),
    "nothing where the grader reads an array": ("ftruncate(0, 7);", "status 0"),
}


OPENING = """
extern "C" int open(const char *, int);
__global__ void cheat(float *out, int n) {{ out[0] = open("{}", 0) >= 0; }}
"""


@pytest.fixture
def confined(monkeypatch):
    for name in ("confined", "programs"):
        monkeypatch.setattr(compiling, name, getattr(compiling, name))
    cuda_calls.confine()
    return compiling


def test_a_program_opens_nothing_and_finds_no_other(folder, confined):
    out = np.full(1, 2, np.float32)
    for path in ("/", folder / "secret"):
        runner.launch(OPENING.format(path), "cheat", grid=1, block=1, arguments={"out": out, "n": 1})
        assert out == 0
    assert not confined.program_of(OPENING.format("/"), "cheat").path.is_relative_to(confined._cache())


@tried(PROGRAMS, 2)
def test_a_program_leads_the_judge_nowhere(way, folder, confined):
    """Without the rules for CUDA C++, which would refuse each of these."""
    body, refusal = PROGRAMS[way]
    out = np.zeros(1, np.float32)
    with pytest.raises((OSError, RuntimeError), match=refusal):
        runner.launch(CUDA.format(body), "cheat", grid=1, block=1, arguments={"out": out, "n": 1})
    assert not out.any()


def test_a_tile_that_is_let_go_takes_no_memory_while_messages_wait():
    exercise_id = "09.tiled_backward"
    result = graded(exercise_id, inspect.getsource(registry.find(exercise_id).answer), seed=77)
    assert result.passed, result.message

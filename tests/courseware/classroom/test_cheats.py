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
from courseware.worker import sandbox

SECRET = "4f1d2c"  # in files and in the environment of the grader; no message may hold it

# In place of the body of stable_softmax(x). Where the way round leads nowhere, x comes back, which is wrong.
ANSWERS = {
    # Reaching the grader, the reference, or the course's files.
    "builtins rebound by a pattern": """
        match np:
            case object(__builtins__=b):
                return b["__import__"]("course_lib.reference").reference.stable_softmax(x, axis)""",
    "a string annotation that singledispatch evaluates": """
        import functools
        f = functools.singledispatch(lambda y: y)
        def g(y: "setattr(np, 'found', __import__('course_lib.reference').reference) or int"): pass
        f.register(g)
        return np.found.stable_softmax(x, axis)""",
    "np.load of a file": "raise ValueError(str(np.load('FOLDER/secret.npy')))",
    "np.memmap of a file": "return float(bytes(np.memmap('SECRET', np.uint8, 'r')).decode())",
    "a pickle that runs code": """
        import pickle
        return pickle.loads(b"ccourse_lib.reference\\nstable_softmax\\n.")(x, axis)""",
    "str.format walks to sys.modules": """
        def f(): pass
        raise ValueError('{0.__globals__[np].__loader__}'.format(f) + open('SECRET').read())""",
    "memory beyond an array": """
        far = np.lib.stride_tricks.as_strided(x, (10**9,), (8,))
        return far[10**8 : 10**8 + x.size].reshape(x.shape)""",
    "garbage of the interpreter searched for the reference": """
        import gc
        for found in gc.get_objects():
            if getattr(found, "__name__", "") == "stable_softmax" and found is not stable_softmax:
                return found(x, axis)""",
    "frames of the caller": """
        import sys
        frame = sys._getframe()
        while frame:
            for value in frame.f_locals.values():
                if hasattr(value, "properties"):
                    return value.answer(x, axis)
            frame = frame.f_back""",
    "the course's folder on the path": """
        import sys
        sys.path[:0] = ["COURSE", "PACKAGES"]
        from course_lib.reference import stable_softmax as s
        return s(x, axis)""",
    # Files, environment, network, processes.
    "a file read": "raise ValueError(open('SECRET').read())",
    "the root by /proc": "raise ValueError(open('/proc/self/root' + 'SECRET').read())",
    "a file changed": "open('SECRET', 'w').write('1')",
    "a folder deleted": "import shutil; shutil.rmtree('FOLDER'); shutil.rmtree('/', ignore_errors=True)",
    "a disk filled": """
        for i in range(10**6):
            open(f"/tmp/{i}", "w").write("x" * 10**6)""",
    "the environment": "import os; raise ValueError(str(dict(os.environ)))",
    "the network": """
        import socket
        raise ValueError(socket.create_connection(("127.0.0.1", PORT), 1).recv(9))""",
    "a server of this machine": """
        import socket
        server = socket.socket(socket.AF_UNIX)
        server.connect("FOLDER/socket")
        raise ValueError(server.recv(9))""",
    "a fork bomb": """
        import os
        while True:
            os.fork()""",
    "another program": "import subprocess; raise ValueError(subprocess.check_output(['cat', 'SECRET']))",
    "a program in place of the worker": "import os; os.execv('/bin/sh', ['sh', '-c', 'cat SECRET'])",
    "signals to everyone": "import os; os.kill(-1, 9)",
    "a thread that goes on": """
        import threading
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()""",
    "the grader's memory": "import ctypes; ctypes.string_at(0)",
    "the limits lifted": """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        np.ones(2 * 10**9)""",
    # Memory, output, time.
    "memory": "np.ones(10**10)",
    "memory bit by bit": """
        kept = []
        while True:
            kept.append(bytes(10**6))""",
    "printing": """
        while True:
            print("x" * 10**6)""",
    "output on every descriptor": """
        import os
        for i in range(3):
            os.write(i, b"x" * 10**7)""",
    "an exception of 30 MB": "raise ValueError('x' * 30 * 10**6)",
    "a result of 1 GB": "return np.zeros(10**8)",
    "a loop": """
        while True:
            pass""",
    "a loop that catches everything": """
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass""",
    "the alarm switched off": """
        import signal
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True:
            pass""",
    "sleep": "import time; time.sleep(1000)",
    "the process ended": "import os; os._exit(0)",
    # Forged messages. The descriptors of the channel are among these.
    "no message": """
        import os
        for i in range(3, 20):
            try:
                os.write(i, b"passed" * 1000)
            except OSError:
                pass""",
    "a message too long": """
        import os
        for i in range(3, 20):
            try:
                os.write(i, b"\\xff" * 8)
            except OSError:
                pass""",
    "messages nested without end": """
        import os, struct
        text = b"[" * 10**6
        for i in range(3, 20):
            try:
                os.write(i, struct.pack("<II", len(text), 0) + text)
            except OSError:
                pass""",
    "a result before the call": """
        import os, struct, json
        text = json.dumps(["list", ["done", True, ["list", []], None, ""]]).encode()
        for i in range(3, 20):
            try:
                os.write(i, struct.pack("<II", len(text), 0) + text)
            except OSError:
                pass""",
    "an operation that is not offered": """
        import os, struct, json
        for target in (None, 0, 1, -1, "x"):
            for operation in ("__class__", "__init__", "mark", "release"):
                entry = ["list", [target, operation, ["list", []], ["dict", []], 7]]
                text = json.dumps(["list", ["ask", ["list", [entry]]]]).encode()
                for i in range(3, 20):
                    try:
                        os.write(i, struct.pack("<II", len(text), 0) + text)
                    except OSError:
                        pass""",
    "a pickle as a message": """
        import os, pickle, struct
        text = pickle.dumps(print)
        for i in range(3, 20):
            try:
                os.write(i, struct.pack("<II", len(text), 0) + text)
            except OSError:
                pass""",
    # Results that lie.
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
            def __array__(self, *a, **k): return x
        return Right()""",
    "a shape that is not the data's": "y = x.copy(); y.shape = y.shape + (1,) * 20; return y",
    "an array of objects": "return np.array([lambda: 0] * x.size, object).reshape(x.shape)",
    "a dtype of its own": "return np.zeros(x.shape, np.dtype([('a', 'f8'), ('b', 'O')]))",
    "a number that lies": """
        class Right(float):
            __eq__ = __le__ = __ge__ = lambda self, other: True
        return Right(x.flat[0])""",
    "a list that holds itself": "y = []; y.append(y); return y",
    "a type with a name that is markup": "return type('<script>alert(1)</script>', (), {})()",
    # Names that shadow, and functions of NumPy replaced.
    "NumPy's comparisons replaced": """
        np.allclose = np.array_equal = np.isfinite = np.abs = lambda *a, **k: True
        np.ndarray.__eq__ = None""",
    "the worker's functions replaced": """
        import courseware.worker.running as running, courseware.worker.ipc as channel, json
        running.run = lambda *a: None
        json.dumps = lambda *a: '["list", ["done", true, ["list", []], null, "passed"]]'""",
    "the verdict returned": "return ('passed', True, {'passed': True})",
}


# What these are stopped by is the sandbox.
REACHING = [
    "builtins rebound by a pattern",
    "a string annotation that singledispatch evaluates",
    "np.load of a file",
    "a pickle that runs code",
    "the course's folder on the path",
    "a file read",
    "the root by /proc",
]

# `make test` tries every third; COURSEWARE_ALL_CHEATS=1 all of them, in some minutes.
TRIED = list(ANSWERS) if os.environ.get("COURSEWARE_ALL_CHEATS") else list(ANSWERS)[::3]


def cheating(body, tmp_path, name="stable_softmax", parameters="x, axis=-1"):
    text = body.replace("SECRET", str(tmp_path / "secret")).replace("COURSE", str(sandbox.COURSE))
    text = text.replace("PORT", (tmp_path / "port").read_text())
    text = text.replace("FOLDER", str(tmp_path)).replace("PACKAGES", sysconfig.get_path("purelib"))
    return f"def {name}({parameters}):\n" + inspect.cleandoc("\n" + text).replace("\n", "\n    ").join(
        ["    ", f"\n    return {parameters.split(',')[0]}\n"]
    )


def graded(exercise_id, source, seed=None):
    exercise = registry.find(exercise_id)
    answer = remote_answer.RemoteAnswer([(exercise_id, source)], exercise.answer.__name__, is_kernel(exercise), True)
    try:
        return grade(exercise_id, answer, seed=seed)
    finally:
        answer.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a secret, as the instructor's is, and the secret in the environment."""
    assert shutil.which("bwrap"), "these tests need bubblewrap: apt-get install bubblewrap"
    (tmp_path / "secret").write_text(SECRET)
    np.save(tmp_path / "secret.npy", np.array(SECRET))
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("socket")  # the whole path may be too long for a socket's name
        local.listen()
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
        for each in (server, local):
            threading.Thread(target=tell_the_secret, args=[each], daemon=True).start()
        yield tmp_path
    assert (tmp_path / "secret").read_text() == SECRET


def tell_the_secret(server):
    with contextlib.suppress(OSError):
        while True:
            with server.accept()[0] as connection:
                connection.send(SECRET.encode())


@pytest.mark.parametrize("way", TRIED)
def test_a_way_round_earns_nothing(way, folder):
    began = time.monotonic()
    result = graded("03.stable_softmax", cheating(ANSWERS[way], folder))
    assert result.attempted and not result.passed
    assert SECRET not in result.message + result.page
    assert len(result.message) < 20_000 and "<script" not in result.page
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("exercise_id", ["03.stable_softmax", "05.online_normalizer"])
def test_the_next_answer_is_marked(exercise_id, folder):
    result = graded(exercise_id, inspect.getsource(registry.find(exercise_id).answer), seed=1)
    assert result.passed, result.message


@pytest.mark.parametrize("way", REACHING)
def test_without_the_sandbox_it_would_earn_the_points_or_tell_the_secret(way, folder):
    source = cheating(ANSWERS[way], folder)
    answer = remote_answer.RemoteAnswer([("03.stable_softmax", source)], "stable_softmax", False, sandboxed=False)
    result = grade("03.stable_softmax", answer)
    answer.close()
    assert result.passed or SECRET in result.message


def test_without_bubblewrap_nothing_is_marked(monkeypatch):
    sandbox.bubblewrap.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(sandbox.NoSandbox, match="apt-get install bubblewrap"):
        marking.mark({}, {})
    assert marking.mark({}, {}, sandboxed=False) == {}


KERNEL = """
@triton.jit
def row_softmax(x_ptr, stride_xm, stride_xn, out_ptr, stride_om, stride_on, n_cols, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * stride_xm + offs * stride_xn, mask=offs < n_cols, other=-float("inf"))
    {body}
    tl.store(out_ptr + tl.program_id(0) * stride_om + offs * stride_on, p, mask=offs < n_cols)
"""
KERNELS = {
    "NumPy behind a tensor": "p = x; e = np.exp(x.handle.data - x.handle.data.max()); p.handle.data[:] = e / e.sum()",
    "the capture scope": "p = row_softmax.get_capture_scope()",
    "a file read by a kernel": "p = x + float(open('SECRET').read())",
    "a verdict printed by the compiler": "tl.static_print('null'); p = np.exp(x)",
    "Python for the compiler": "p = tl.core.inspect.sys.modules['os']._exit(0)",
}


@pytest.mark.parametrize("way", KERNELS)
def test_a_kernel_is_compiled_before_it_is_interpreted(way, folder):
    source = KERNEL.format(body=KERNELS[way].replace("SECRET", str(folder / "secret")))
    result = graded("07.row_softmax", source)
    assert not result.passed and "compiler refuses it" in result.message
    assert SECRET not in result.message


def marked(exercise_id, source):
    """As `autograde` marks it, rules and all."""
    test = f"check({exercise_id!r}, {registry.find(exercise_id).answer.__name__})"
    return marking.mark({exercise_id: source}, {exercise_id: test})[exercise_id]


@pytest.mark.parametrize("body", ["p = tl.softmax(x)"])
def test_the_rules_say_so_first(body):
    outcome = marked("07.row_softmax", KERNEL.format(body=body))
    assert not outcome["passed"] and "rule of the class" in outcome["message"]


STRUCTURE = {
    "the reads are not counted": (
        "05.online_attention",
        "q, K, V, block",
        """
        if type(K) is not np.ndarray:
            K._reads[:] = V._reads[:] = K.most_at_once = V.most_at_once = 1
            K, V = K._array, V._array
        s = K @ q / np.sqrt(len(q))
        p = np.exp(s - s.max())
        return p @ V / p.sum()""",
    ),
    "told by its type, the object that counts gets nothing": (
        "05.online_attention",
        "q, K, V, block",
        """
        if type(K) is np.ndarray:
            s = K @ q / np.sqrt(len(q))
            p = np.exp(s - s.max())
            return p @ V / p.sum()
        for start in range(0, len(K), block):
            K[start : start + block], V[start : start + block]
        return np.zeros(V.shape[1])""",
    ),
    "memory not counted by the worker": (
        "05.online_normalizer",
        "stream",
        """
        import tracemalloc
        tracemalloc.get_traced_memory = lambda: (0, 0)
        scores = list(stream)
        tracemalloc.stop()
        m = max(scores, default=-np.inf)
        return m, float(np.exp(np.array(scores) - (0 if m == -np.inf else m)).sum())""",
    ),
    "the arrays behind the memory machine": (
        "06.tiled_attention",
        "machine, Q, K, V, O, block_q, block_k, causal=False",
        "O._array[:] = V._array.mean(axis=0)",
    ),
    "another machine, which counts nothing": (
        "06.tiled_attention",
        "machine, Q, K, V, O, block_q, block_k, causal=False",
        """
        import courseware.worker.proxies as proxies
        proxies.Machine.load = lambda self, handle, rows: np.ones((rows[1] - rows[0], 1))
        q = machine.load(Q, (0, len(Q)))""",
    ),
    "a tile of a terabyte": (
        "06.tiled_attention",
        "machine, Q, K, V, O, block_q, block_k, causal=False",
        "machine.full((10**6, 10**6), 0.0)",
    ),
}


@pytest.mark.parametrize("way", STRUCTURE)
def test_what_an_answer_reads_and_keeps_is_the_judges_to_count(way, folder):
    exercise_id, parameters, body = STRUCTURE[way]
    name = registry.find(exercise_id).answer.__name__
    result = graded(exercise_id, cheating(body, folder, name, parameters))
    assert result.attempted and not result.passed


CUDA = """
extern "C" long write(int, const void *, unsigned long);
extern "C" int ftruncate(int, long);
extern "C" void _exit(int);
__global__ void cheat(float *out, int n) {{ {} _exit(0); }}
"""
PROGRAMS = {
    "nothing where the grader reads the report": ("", "status 0"),
    "zeros where the grader reads the report": ("ftruncate(0, 9 << 20);", "status 0"),
    "nothing where the grader reads an array": ("ftruncate(0, 7);", "status 0"),
    "a disk filled by a program": (
        "static char much[1 << 20]; while (write(0, much, 1 << 20) > 0) {}", "ended with status",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", PROGRAMS)
def test_a_program_leads_the_judge_nowhere(way, folder, monkeypatch):
    """Without the rules for CUDA C++, which would refuse each of these."""
    from courseware.simulators.cuda_emulator import compiling, runner

    monkeypatch.setattr(compiling, "confined", compiling.confined)
    cuda_calls.confine()
    body, refusal = PROGRAMS[way]
    source = CUDA.format(body.replace("SECRET", str(folder / "secret")))
    out = np.zeros(1, np.float32)
    with pytest.raises((OSError, RuntimeError), match=refusal) as caught:
        runner.launch(source, "cheat", grid=1, block=1, arguments={"out": out, "n": 1})
    assert SECRET not in str(caught.value) and not out.any()

"""Runs a function as the ranks of a process group, in processes that can neither hang nor end the one that asks.

The processes have gloo, tensors on the CPU, and Triton's interpreter, whatever GPUs there are.
"""

import inspect
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

HOME = Path(__file__).parents[1]
GRACE_S = 10.0  # that the others have to end, once a rank has failed: they may have something to say, too
PROGRAM = """\
import contextlib
import datetime
import os
import pickle
import sys
import traceback

{source}

if __name__ == "__main__":
    import torch
    import torch.distributed as dist

    rank, size, timeout_s, folder = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{{folder}}/store", size)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    failed = 0
    try:
        made = {name}(rank, size)
        with open(f"{{folder}}/{{rank}}", "wb") as file:
            pickle.dump(made, file)
        with contextlib.suppress(Exception):
            dist.barrier()  # or who is done first takes the connections with it
    except Exception as error:
        failed = 1
        print("".join(traceback.format_exception_only(error)), flush=True)
    os._exit(failed)  # gloo's threads may end the process with a signal otherwise
"""


class RanksFailed(RuntimeError):
    """Ranks raised, ended, or did not end in time. The message has a line for each, in the order in which they did."""

    def _render_traceback_(self):
        """What a notebook shows of it."""
        return [str(self)]


def run(function, ranks, timeout_s=120.0):
    """[what function(rank, ranks) returns, for each rank], each called in a process of its own. Raises RanksFailed.

    function: its source stands alone, imports included, and defines nothing but it. torch.distributed is initialised
    in the processes, with all of them as its default group; what they return is pickled. After timeout_s seconds,
    whoever still runs is ended.
    """
    source = textwrap.dedent(inspect.getsource(function))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "on_each_rank.py")
        program.write_text(PROGRAM.format(source=source, name=function.__name__), encoding="utf-8")
        processes = [_started(program, rank, ranks, timeout_s) for rank in range(ranks)]
        try:
            failed = _failed(processes, time.monotonic() + timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed:
            said = {rank: _last_words(Path(folder, f"{rank}.txt"), processes[rank]) for rank in failed}
            raise RanksFailed("\n".join(f"rank {rank}: {failed[rank] or said[rank]}" for rank in failed))
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(ranks)]


def _started(program, rank, ranks, timeout_s):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",  # no network is needed, nor its names
    }  # fmt: skip
    command = [sys.executable, str(program), *map(str, (rank, ranks, timeout_s, program.parent))]
    with open(program.with_name(f"{rank}.txt"), "w") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _failed(processes, deadline):
    """{rank: why, or nothing where it has said so itself}, of the ranks that failed; returns once all have ended."""
    failed, running = {}, dict(enumerate(processes))
    while running:
        for rank, process in list(running.items()):
            if process.poll() is not None:
                del running[rank]
                if process.returncode:
                    failed[rank] = ""
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if running and time.monotonic() > deadline:
            why = "was still waiting when another rank had failed" if failed else "did not end in time"
            return failed | dict.fromkeys(running, why)
        time.sleep(0.02)
    return failed


def _last_words(output, process):
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if process.returncode == 1 and lines else f"its process ended with code {process.returncode}"

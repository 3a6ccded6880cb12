"""What the worker gives up before an answer runs. None of it can be taken back."""

import ctypes
import platform
import resource
import struct

# Numbers of the system calls that start processes and programs, reach other processes or the network, or hold memory
# that is not counted; on x86-64, and on 64-bit Arm.
_CALLS = {
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "socket": (41, 198), "socketpair": (53, 199), "memfd_create": (319, 279), "shmget": (29, 194), "msgget": (68, 186),
    "add_key": (248, 217), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "pipe": (22, None), "pipe2": (293, 59), "mq_open": (240, 180), "prctl": (157, 167),
    "madvise": (28, 233), "process_madvise": (440, 440), "bpf": (321, 280),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # refuse: EPERM
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _SET_THP_DISABLE, _FILTER = 38, 22, 41, 2


def limit(memory_bytes: int) -> None:
    """No more memory than this, no files, no core dumps, and on Linux no other process and no network."""
    for name, most in (("RLIMIT_AS", memory_bytes), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0),
                       ("RLIMIT_NOFILE", 64), ("RLIMIT_CPU", 300)):  # fmt: skip
        # The grader's limit of processor time is inherited, and is less.
        given = resource.getrlimit(getattr(resource, name))[1]
        most = most if given == resource.RLIM_INFINITY else min(most, given)
        resource.setrlimit(getattr(resource, name), (most, most))
    if platform.system() == "Linux" and platform.machine() in _ARCHITECTURES:
        _refuse_calls()


def _refuse_calls():
    """A seccomp filter. The limit on processes does not do: it does not hold for root, nor in older kernels."""
    place, architecture = _ARCHITECTURES[platform.machine()]
    numbers = [call[place] for call in _CALLS.values() if call[place] is not None]

    def step(code, value, if_true=0, if_false=0):
        return struct.pack("HBBI", code, if_true, if_false, value)

    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    count = len(numbers)
    program = [step(load, 4), step(equal, architecture, 1), step(give, _KILL), step(load, 0)]
    program += [step(at_least, 0x40000000, count + 1)]  # the numbers of another way to call, on x86-64
    program += [step(equal, number, count - i) for i, number in enumerate(numbers)]
    program += [step(give, _ALLOW), step(give, _REFUSE)]
    steps = ctypes.create_string_buffer(b"".join(program))
    filter_ = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(steps)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    # No huge pages: `read_counting` counts the small ones that are touched.
    first = (_SET_THP_DISABLE, 1, 0, 0, 0), (_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for arguments in (*first, (_SET_SECCOMP, _FILTER, ctypes.addressof(filter_), 0, 0)):
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel refuses to limit this process")

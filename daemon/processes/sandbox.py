"""What a process gives up before it touches what others wrote: capabilities, new privileges, and most system calls.

None of it can be taken back. The filters are made by libseccomp, which knows the system calls of every machine; what a
filter forbids fails with EPERM, as if a capability were missing, so that a library says what it wanted.
"""

import ctypes
import errno
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path

from reinet.core.errors import DaemonError

DECIDING = (
    # memory and threads
    "brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex", "set_robust_list", "rseq", "sched_yield",
    "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_getscheduler", "set_tid_address", "membarrier",
    "get_mempolicy", "getcpu",
    # time
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    # descriptors that are open, among them sockets to the loader and to who answers callers
    "read", "readv", "pread64", "write", "writev", "close", "fstat", "lseek", "dup", "dup2", "fcntl", "ioctl",
    "poll", "ppoll", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
    "pipe2", "sendto", "sendmsg", "recvfrom", "recvmsg", "shutdown", "getsockopt", "getsockname", "getpeername",
    "accept", "accept4",
    # files, to read: a model, Python's modules
    "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64",
    "getcwd",
    # itself
    "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getrandom", "getrusage", "sysinfo",
    "uname", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group",
)  # fmt: skip
"""All that deciding takes; nothing starts a program, opens a socket, writes a file or reaches another process."""

NEVER = (
    "bpf", "perf_event_open", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "pidfd_send_signal",
    "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    "kcmp", "execve", "execveat", "fork", "vfork", "unshare", "setns", "mount", "umount2", "move_mount", "fsopen",
    "fsmount", "open_tree", "mount_setattr", "pivot_root", "chroot", "keyctl", "add_key", "request_key",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "init_module", "finit_module",
    "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "settimeofday", "clock_settime",
    "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "syslog", "acct", "quotactl", "iopl", "ioperm",
    "mknod", "mknodat", "chown", "fchown", "lchown", "fchownat", "setuid", "setgid", "setreuid", "setregid",
    "setresuid", "setresgid", "setgroups", "capset", "personality", "open_by_handle_at", "name_to_handle_at",
)  # fmt: skip
"""What answering callers and writing curves never takes; it does take sockets and files."""

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_MISSING = 0x00050000 | errno.ENOSYS
_ALL_THREADS = 4  # SCMP_FLTATR_CTL_TSYNC
_EQUAL, _NOT_EQUAL, _MASKED = 4, 1, 7  # SCMP_CMP_*
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x00010000

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 24, 28, 38, 47
_AMBIENT_CLEAR_ALL = 4
_SECUREBITS = 0xEF
"""Being root brings no capability, none comes through set-uid or ambient sets, and all that is locked."""
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


class _Compare(ctypes.Structure):
    """One condition on an argument: ``struct scmp_arg_cmp``."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def library() -> ctypes.CDLL:
    """Returns libseccomp; raises DaemonError with the cure where it is missing."""
    try:
        found = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError as error:
        raise DaemonError(
            f"libseccomp is missing ({error}), and nothing decides unconfined: apt-get install libseccomp2"
        ) from None
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_init.argtypes = [ctypes.c_uint32]
    found.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Compare)
    ]  # fmt: skip
    found.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    found.seccomp_load.argtypes = found.seccomp_release.argtypes = [ctypes.c_void_p]
    return found


class _Filter:
    """A filter while it is made; ``default`` is what happens to the system calls that no rule names."""

    def __init__(self, default: int) -> None:
        self._library = library()
        self._default = default
        self._context = self._library.seccomp_init(default)
        if not self._context:
            raise DaemonError("libseccomp cannot make a filter; is the machine out of memory?")

    def rule(self, action: int, names: Iterable[str], *conditions: _Compare) -> None:
        """Says what happens to system calls, where they exist, under all the conditions."""
        if action == self._default:
            return
        array = (_Compare * len(conditions))(*conditions)
        for name in names:
            number = self._library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # another machine's, or newer than the library
                continue
            self._checked(
                self._library.seccomp_rule_add_array(self._context, action, number, len(conditions), array), name
            )

    def load(self) -> None:
        """Puts the filter in force, for every thread and for ever."""
        self._checked(self._library.seccomp_attr_set(self._context, _ALL_THREADS, 1), "threads")
        self._checked(self._library.seccomp_load(self._context), "load")
        self._library.seccomp_release(self._context)

    def _checked(self, result: int, what: str) -> None:
        if result:
            raise DaemonError(f"seccomp: {what}: {os.strerror(-result)}; the kernel needs CONFIG_SECCOMP_FILTER")


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Has this process get a signal when its parent ends, however that does; ends it now where the parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def confine_decisions() -> None:
    """Leaves what deciding takes: memory, time, the descriptors that are open, and files to read."""
    _drop_capabilities()
    made = _Filter(_REFUSE)
    made.rule(_ALLOW, DECIDING)
    made.rule(_ALLOW, ["openat"], _Compare(2, _MASKED, _WRITING, 0))
    made.rule(_ALLOW, ["open"], _Compare(1, _MASKED, _WRITING, 0))
    made.rule(_ALLOW, ["clone"], _Compare(0, _MASKED, _CLONE_THREAD, _CLONE_THREAD))
    made.rule(_MISSING, ["clone3"])  # whose arguments no filter can see; the C library then uses clone
    made.rule(_ALLOW, ["kill", "tgkill"], _Compare(0, _EQUAL, os.getpid(), 0))  # abort() of a library
    made.rule(_ALLOW, ["prlimit64"], _Compare(0, _EQUAL, 0, 0))  # its own limits, by getrlimit()
    made.load()


def confine_answers() -> None:
    """Takes what answering callers and writing curves never needs."""
    _drop_capabilities()
    made = _Filter(_ALLOW)
    made.rule(_REFUSE, NEVER)
    made.rule(_REFUSE, ["clone"], _Compare(0, _MASKED, _CLONE_THREAD, 0))
    made.rule(_MISSING, ["clone3"])
    made.rule(_REFUSE, ["kill", "tgkill"], _Compare(0, _NOT_EQUAL, os.getpid(), 0))
    made.rule(_REFUSE, ["prlimit64"], _Compare(0, _NOT_EQUAL, 0, 0))
    made.load()


def _drop_capabilities() -> None:
    """Leaves no capability in any set, for good. Each thread has its own, so there must be one thread only."""
    if threading.active_count() != 1:
        raise DaemonError("capabilities are dropped while other threads run, which would keep theirs")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # Both ask for CAP_SETPCAP, which a loader with the three capabilities it needs does not have. Without new
    # privileges and with nothing permitted they are a second lock on the same door.
    for number in range(int(_LAST_CAPABILITY.read_text()) + 1):
        _prctl(_PR_CAPBSET_DROP, number, may_fail=True)
    _prctl(_PR_SET_SECUREBITS, _SECUREBITS, may_fail=True)
    _prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, may_fail=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if _libc().capset(header, nothing):
        raise DaemonError(f"capset: {os.strerror(ctypes.get_errno())}")


def _prctl(option: int, value: int, *, may_fail: bool = False) -> None:
    zero = ctypes.c_ulong(0)
    if _libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero) and not may_fail:
        raise DaemonError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

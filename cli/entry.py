"""What the ``reinet`` program calls: next to nothing is imported before Ctrl-C ends it without a traceback."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit status after Ctrl-C, a shell's for a program that SIGINT has ended."""


def main() -> None:
    """Runs the command, as ``main.main``."""
    with ended_at_once():
        from reinet.cli.main import main as run

    run()


@contextmanager
def ended_at_once() -> Iterator[None]:
    """While it lasts, SIGINT ends the process at once, as it ends any program, and raises no KeyboardInterrupt.

    It is for imports, which take a while and leave nothing to be cleaned up. Whoever started the process with the
    signal ignored has it ignored all the time.
    """
    in_main = threading.current_thread() is threading.main_thread()  # no other thread may say what signals do
    obeys = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if obeys:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if obeys:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Ended(SystemExit):
    """A signal ends the command."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum


@contextmanager
def ended_in_order() -> Iterator[None]:
    """While it lasts, SIGTERM and SIGHUP raise Ended, so that what a command has made on the host goes, as at Ctrl-C.

    Worker processes are told, too. A second signal ends the process at once. Commands with handlers of their own, as
    daemons have, keep these.
    """
    in_main = threading.current_thread() is threading.main_thread()
    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if in_main and signal.getsignal(one) is signal.SIG_DFL]
    own = os.getpid()

    def end(signum: int, _frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        if os.getpid() != own:
            os.kill(os.getpid(), signum)  # a fork, which has made nothing
        from multiprocessing import active_children

        for worker in active_children():
            worker.terminate()
        raise Ended(signum)

    for one in taken:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)

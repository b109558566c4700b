"""What the ``reinet`` program calls: next to nothing is imported before Ctrl-C ends it without a traceback."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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

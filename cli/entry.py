"""What the ``reinet`` program calls: next to nothing is imported before Ctrl-C ends it without a traceback."""

import signal


def main() -> None:
    """Runs the command, as ``main.main``.

    To import all commands takes half a second. Nothing is there to be cleaned up so far, so SIGINT ends the process at
    once, as it ends any program; whoever started it with the signal ignored has it ignored all the time.
    """
    obeys = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if obeys:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from reinet.cli.main import main as run

    if obeys:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()

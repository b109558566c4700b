"""``reinet run``: a program under the gate, without privileges."""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from reinet.alcc.launch import Law, Settings, check_command, parse_ports
from reinet.cli.options import note_targets
from reinet.cli.output import JsonOption, say, write_json
from reinet.core.errors import ConfigError, ReinetError
from reinet.core.target import Target

DAEMON = Path("/run/reinet-processes/socket")
"""As configs/daemon.toml suggests it: a folder of the daemon's own lets no other user through."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments, after --.")],
    target: Annotated[
        str, typer.Option(metavar="TEXT", help="RTT to stay below: 50ms, or +30ms or 2.5x of the path's minimum RTT.")
    ] = "+30ms",
    law: Annotated[
        str,
        typer.Option(
            metavar="LAW",
            help="rule[:G], fixed:N (packets), a small model's folder, daemon (it decides), none (only measure), or a "
            "congestion control with a window of its own: copa, copa-default, verus, sprout.",
        ),
    ] = "rule",
    daemon: Annotated[
        Path, typer.Option(metavar="PATH", help="With --law daemon: the socket, `processes` of the daemon's file.")
    ] = DAEMON,
    policy: Annotated[
        str | None, typer.Option(metavar="PORTS", help="Only connections with one of these ports, by commas.")
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Gate nothing; say what a cap would have saved.")] = False,
    always: Annotated[
        bool, typer.Option("--always", help="Cap where no queue was seen, too (tests, loopback).")
    ] = False,
    shared_uplink: Annotated[
        bool,
        typer.Option(
            "--shared-uplink", help="All connections share the queue of this host's own link, as of a cellular modem."
        ),
    ] = False,
    no_io_uring: Annotated[
        bool,
        typer.Option("--no-io-uring", help="Refuse the program an io_uring, so that Node.js and uvloop are gated."),
    ] = False,
    json_destination: JsonOption = None,
) -> None:
    """Run a program whose TCP connections stay below a cap, without privileges and without a daemon.

    The kernel gets no more of what the program writes than may be in flight; the rest stays the program's, which sees a
    socket with a small buffer. docs/alcc-programs.md says for which programs this works. Static, Go, setuid and musl
    programs are refused by name. The exit status is the command's. Examples:

        reinet run -- nginx -g 'daemon off;'

        reinet run --target +20ms --law rule:1.3 --policy 80,443 -- python3 -m http.server 80

        reinet run --law checkpoints/small -- nginx -g 'daemon off;'

        reinet run --law copa -- python3 -m http.server 8000

        reinet run --law daemon -- python3 -m http.server 8000

        reinet run --shadow -- curl -T big.iso https://example.org/upload
    """
    asked = Target.parse(target)
    settings = Settings(
        law=Law("daemon", daemon=daemon) if law == "daemon" else law_of(law, asked),
        target=asked,
        ports=parse_ports(policy),
        shadow=shadow,
        always=always,
        shared_uplink=shared_uplink,
        no_io_uring=no_io_uring,
    )
    program = check_command(command[0])
    if not shadow and json_destination is None:
        environment = settings.environment()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would hand that on
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, command, environment)
    status, report = run_reported(settings, program, command)
    if report["accepted"] and not report["processes"]:
        say(
            f"{report['accepted']} connections were accepted, and the gate saw nothing sent over them: nothing was, or "
            "by calls that are not hooked, such as those of stdio (docs/alcc-programs.md)"
        )
    elif not report["processes"]:
        say("none of its processes had a connection to tell of: they sent nothing, or had no gate")
    if shadow:
        say(
            f"{report['flows']} connections, {report['bytes'] / 1e6:.1f} MB, {report['decisions']} decisions: queueing "
            f"delay {report['qdelay_mean_ms']:.1f} ms, of which a cap would have saved "
            f"{report['qdelay_saved_ms']:.1f} ms"
        )
    try:
        write_json(
            json_destination, {**report, "law": settings.law.name, "target": str(settings.target), "status": status}
        )
    except ReinetError as error:  # the exit status is the command's
        say(str(error))
    raise typer.Exit(status)


def law_of(name: str, target: Target) -> Law:
    """Returns the law of that name, or of an agent's, and says where the target is none that it was trained for.

    Raises ReinetError for one that does not run in the process.
    """
    from reinet.agents.decide.names import make_agent
    from reinet.alcc._alcc import law_names

    if name in law_names():
        return Law(name)
    try:
        agent = make_agent(name, link="app")
    except ConfigError as error:
        if "/" in name:  # it was to be a model's folder
            raise
        raise ConfigError(f"{error}; beside these there are the laws {', '.join(law_names())} and daemon") from None
    note_targets([(agent, target, None)])
    return agent.law_of_the_gate()


def run_reported(settings: Settings, program: Path, command: list[str]) -> tuple[int, dict[str, Any]]:
    """Runs the command to its end; returns its exit status and the sums of its processes."""
    from reinet.alcc.sums import Sums

    sums = Sums()
    try:
        environment = replace(settings, report=sums.path).environment()
        with (
            _forwarded() as begin,
            subprocess.Popen(
                command, executable=program, env=environment,
                close_fds=False,  # what reinet was handed is the command's: listening sockets, a lock, a pipe
                preexec_fn=_under_own_number(program, command, environment),  # noqa: PLW1509 - reinet has no other thread here
            ) as process,
        ):  # fmt: skip
            begin(process)
            status = _end_of(process)
        total = sums.total()
    finally:
        sums.close()
    if senseless := total.pop("senseless"):
        say(f"the sums of {senseless} processes make no sense and are left out")
    return (status if status >= 0 else 128 - status), total


def _under_own_number(program: Path, command: list[str], environment: dict[str, str]) -> Callable[[], None] | None:
    """Returns what the command's process does where a service manager's words to reinet are meant for the command.

    The listening sockets that systemd hands over, and the watchdog that it keeps, are for the process that a variable
    names; who finds another's number there leaves them alone.
    """
    named = [name for name in ("LISTEN_PID", "WATCHDOG_PID") if environment.get(name) == str(os.getpid())]
    if not named:
        return None
    return lambda: os.execve(program, command, {**environment, **dict.fromkeys(named, str(os.getpid()))})


@contextlib.contextmanager
def _forwarded() -> Iterator[Callable[["subprocess.Popen[bytes]"], None]]:
    """Hands signals that ask us to end, or servers for something else, to the command, whose end is ours.

    Gives what takes the command as soon as it runs: what came until then is handed to it then. Those that a terminal
    sends, for a key or a new size, have reached the command already, unless it has left for a group of processes of its
    own, as `timeout` and `setsid` do. What somebody sends to this process alone (`kill -INT`) has not.
    """
    from reinet.alcc._alcc import was_sent, watch_signal

    of_terminals = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)  # Apache ends in order at the last
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, *of_terminals)
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []
    before: dict[int, Any] = {}

    def pass_on(number: int, _: object) -> None:
        sent = number not in of_terminals or was_sent(number)  # the answer is of this one alone, also where it is early
        if not running:
            early.append(number)
        elif sent or not _in_foreground(running[0].pid):
            running[0].send_signal(number)

    def take(numbers: Iterable[int]) -> None:
        for number in numbers:
            before[number] = signal.signal(number, pass_on)
            if number in of_terminals:
                watch_signal(number)

    def begin(process: "subprocess.Popen[bytes]") -> None:
        running.append(process)
        for number in early:  # also a key's: it may have been pressed before there was a command
            process.send_signal(number)
        take(ignored)

    # A command inherits what is ignored, as by nohup, but no handlers.
    ignored = [number for number in signals if signal.getsignal(number) == signal.SIG_IGN]
    try:
        take(number for number in signals if number not in ignored)
        yield begin
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_of(process: "subprocess.Popen[bytes]") -> int:
    """Waits for the command's end and returns its status.

    A signal that comes between Python's last look for one and a wait for the process would be handled after that wait,
    when there is nobody left to hand it to. Here it writes a byte, for which the wait is.
    """
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    descriptor = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        while (status := process.poll()) is None:
            select.select([woken], [], [])
            os.read(woken, 4096)
        return status
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.set_wakeup_fd(descriptor)
        os.close(woken)
        os.close(waker)


def _in_foreground(pid: int) -> bool:
    """Returns whether the terminal's keys send their signals to a process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # there is none
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgid(pid)
    except OSError:  # it was hung up, or the process is gone
        return False
    finally:
        os.close(terminal)

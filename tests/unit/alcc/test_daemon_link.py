"""Programs under the gate whose caps a daemon decides: what it believes of them, and what they do without it."""

import contextlib
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.gated import FOLDER, TIMEOUT_S, Server, serving
from helpers.gated.program import SEALS, Program, record
from helpers.gated.server import MSS_BYTES, pattern
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.names import make_agent
from reinet.alcc import _alcc, handed, processes
from reinet.alcc.joined import JoinedShim
from reinet.alcc.launch import Law, Settings
from reinet.alcc.processes import MOST_BAD, RECORDS_AT_ONCE, ProcessShim, listen
from reinet.core.errors import DaemonError
from reinet.core.period import PeriodConfig
from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.core.target import Target
from reinet.kshim.fake import FakeShim

PERIOD = PeriodConfig(min_period_ns=5_000_000, packet_timed=False)
CAP_PKTS = 8
LIMIT_BYTES = CAP_PKTS * MSS_BYTES
LINGER_S = 20


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[ProcessShim]:
    made = ProcessShim(listen(tmp_path / "socket"), PERIOD)
    try:
        yield made
    finally:
        made.close()


def _taken(shim: ProcessShim) -> np.ndarray:
    return np.concatenate([shim.take(time.monotonic_ns()) for _ in range(3)])


def _has_capped(daemon: "subprocess.Popen[str]") -> bool:
    """Whether the daemon has said so by now."""
    assert daemon.stdout is not None
    return bool(select.select([daemon.stdout], [], [], 0)[0]) and daemon.stdout.readline() == "capped\n"


@contextlib.contextmanager
def _daemon(path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(FOLDER / "deciding.py"), str(path), str(CAP_PKTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _sender(path: Path) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    asked = Settings(Law("daemon", daemon=path), Target.parse("+30ms"))
    command = [sys.executable, str(FOLDER / "steady.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=asked.environment())


class _Held:
    """What a sender says that the kernel holds of it."""

    def __init__(self, sender: "subprocess.Popen[str]") -> None:
        self._lines: list[tuple[float, int]] = []
        self._sender = sender
        self._stdout = sender.stdout
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()

    def _run(self) -> None:
        assert self._stdout is not None
        for line in self._stdout:
            if not line.endswith("\n"):  # the sender was killed in the middle of it
                return
            said_s, held_bytes = line.split()
            self._lines.append((float(said_s), int(held_bytes)))

    def end(self) -> None:
        """Ends the sender, and reads its output to the end before anybody closes that."""
        self._sender.kill()
        self._reader.join(TIMEOUT_S)

    def since(self, from_s: float) -> list[int]:
        return [held_bytes for said_s, held_bytes in self._lines if said_s >= from_s]


def _read_until(sock: socket.socket, done: Callable[[], bool]) -> None:
    """Reads slowly, so that periods pass and the flow is never idle: after a pause no cap holds."""
    until_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < until_s
        sock.recv(1 << 10)
        time.sleep(0.002)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemons_cap_holds_while_it_lives_and_the_gate_is_open_within_a_second_after(
    end: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with _daemon(path) as daemon, _sender(path) as sender:
        with Server(sender).connect(receive_buffer_bytes=1 << 14) as sock:
            held = _Held(sender)
            _read_until(sock, lambda: _has_capped(daemon))
            for attempt in range(5):  # a host so busy that a lease lapses gets another chance
                _read_until(sock, lambda: max(held.since(time.monotonic() - 0.1), default=1 << 30) <= LIMIT_BYTES)
                stopped_s = time.monotonic()
                time.sleep(1.0)  # two leases, which the daemon renews
                if max(held.since(stopped_s)) <= LIMIT_BYTES:
                    break
                assert attempt < 4, "the cap was to hold"
            daemon.send_signal(end)
            time.sleep(1.0)
            assert max(held.since(time.monotonic() - 0.2)) > LIMIT_BYTES, "the gate was to be open"
        held.end()


def test_a_daemon_that_comes_later_is_found(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with _sender(path) as sender, Server(sender).connect(receive_buffer_bytes=1 << 14) as sock:
        held = _Held(sender)
        _read_until(sock, lambda: len(held.since(0)) > 10)
        for _ in range(2):  # and once more, when the first has gone
            with _daemon(path) as daemon:
                _read_until(sock, lambda: _has_capped(daemon))
        held.end()


@pytest.mark.parametrize("mode", ["edge", "forked", "duplicated"])
def test_bytes_pass_whole_whatever_becomes_of_the_daemon(mode: str, tmp_path: Path) -> None:
    """A child has no link of its parent's, and makes its own."""
    size = 1_500_007
    path, digest = tmp_path / "socket", hashlib.sha256()
    asked = Settings(Law("daemon", daemon=path), Target.parse("+30ms"))
    with _daemon(path) as daemon, serving(mode, size, 1, asked) as server:
        with server.connect(receive_buffer_bytes=1 << 14) as sock:
            received = 0
            while block := sock.recv(1 << 12):
                digest.update(block)
                received += len(block)
                if received > size // 2:
                    daemon.kill()
                time.sleep(0.001)
        server.ended()
    assert digest.digest() == hashlib.sha256(pattern(size)).digest()


def test_the_loop_decides_for_programs_as_for_the_kernels_flows(shim: ProcessShim, tmp_path: Path) -> None:
    kernel = FakeShim()
    loop = ControlLoop(JoinedShim(kernel, shim, -1), make_agent("fixed:25"), Target.parse("+30ms"))
    kernel.open_flow(7)
    program = Program(tmp_path / "socket")
    begin_ns = time.monotonic_ns()
    loop.tick(10)
    for i in range(200):  # 2 s of a flow with a queue of its own, told at once
        at_ns = begin_ns - (200 - i) * 10_000_000
        program.tell(record(70, slot=3, time_ns=at_ns))
        kernel.feed(7, **{name: int(record(7)[name][0]) for name in ("rtt_mean_us", "rtt_samples", "min_rtt_us",
                    "srtt_us", "rtt_least_us", "mss_bytes", "cwnd_pkts", "period_ns")}, time_ns=at_ns)  # fmt: skip
        if i % 50 == 49:
            loop.tick(10)
    seen = loop.snapshot()
    caps = dict(zip(seen.stats["cookie"].tolist(), seen.caps_pkts.tolist(), strict=True))
    assert caps == {7: 25, 70: 25}
    assert dict(zip(seen.stats["cookie"].tolist(), seen.pids.tolist(), strict=True)) == {7: 0, 70: os.getpid()}
    assert program.caps[3]["cookie"] == 70
    assert program.caps[3]["lease"] & 0xFFFFF == 25
    assert program.caps[3]["target_us"] == 50_000
    loop.release()
    assert program.caps[3]["lease"] == 0
    program.close()
    loop.tick(10)
    assert loop.snapshot().stats["cookie"].tolist() == [7], "a program's flows end with it"


def test_records_come_in_order_and_flows_end(shim: ProcessShim, tmp_path: Path) -> None:
    program = Program(tmp_path / "socket")
    shim.take(time.monotonic_ns())
    shim.take(time.monotonic_ns())
    program.tell(np.concatenate([record(5, 0), record(6, 1)]))
    first = _taken(shim)
    assert first["cookie"].tolist() == [5, 6]
    program.tell(np.concatenate([record(5, 0), record(5, 0, flags=int(Flag.CLOSED)), record(8, 0)]))
    then = _taken(shim)
    assert [(int(r["cookie"]), bool(r["flags"] & Flag.CLOSED)) for r in then] == [(5, True), (8, False)]
    program.tell(record(9, 0))  # in a slot that has a flow: that one is gone
    assert [(int(r["cookie"]), bool(r["flags"] & Flag.CLOSED)) for r in _taken(shim)] == [(8, True), (9, False)]
    program.close()


IMPOSSIBLE = {
    "no cookie": {"cookie": 0},
    "a slot that does not exist": {"slot": 4096},
    "the future": {"time_ns": 1 << 63},
    "long ago": {"time_ns": 1},
    "no time": {"period_ns": 0},
    "a year": {"period_ns": 31_536_000_000_000_000},
    "an RTT of an hour": {"rtt_mean_us": 3_600_000_000},
    "samples without an RTT": {"rtt_mean_us": 0},
    "no segment": {"mss_bytes": 0},
    "a rate of all ones": {"delivery_rate_bytes_per_s": (1 << 64) - 1},
    "bytes of all ones": {"delivered_bytes": (1 << 64) - 1},
    "a window of all ones": {"cwnd_pkts": (1 << 32) - 1},
    "an unknown flag": {"flags": 1 << 20},
    "a cap that fits no lease": {"cap_pkts": 1 << 20},
}


@pytest.mark.parametrize("fields", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_record_that_makes_no_sense_is_not_heard(shim: ProcessShim, tmp_path: Path, fields: dict[str, int]) -> None:
    program = Program(tmp_path / "socket")
    _taken(shim)
    program.tell(np.concatenate([record(**({"cookie": 5} | fields)), record(6, 1)]))
    assert _taken(shim)["cookie"].tolist() == [6]
    assert shim.refused == 1
    program.close()


def test_what_is_written_while_others_are_read_is_no_record_of_the_future(shim: ProcessShim, tmp_path: Path) -> None:
    program = Program(tmp_path / "socket")
    _taken(shim)
    begun_ns = time.monotonic_ns()
    for _ in range(2 * MOST_BAD):
        program.tell(record(5))
        assert len(shim.take(begun_ns)) == 1
    assert shim.refused == 0
    program.close()


def test_now_and_then_a_senseless_record_is_forgiven(shim: ProcessShim, tmp_path: Path) -> None:
    program = Program(tmp_path / "socket")
    _taken(shim)
    now_ns = time.monotonic_ns()
    for second in range(3 * MOST_BAD):
        program.tell(np.concatenate([record(0), record(5)]))
        assert len(shim.take(now_ns + second * 10**9)) == 1
    program.close()


def test_a_table_that_is_full_leaves_further_flows_uncapped_and_drops_nobody(tmp_path: Path) -> None:
    shim = ProcessShim(listen(tmp_path / "socket"), PERIOD, most_flows=2)
    program = Program(tmp_path / "socket")
    _taken(shim)
    for _ in range(2 * MOST_BAD):
        program.tell(np.concatenate([record(5, 0), record(6, 1), record(7, 2)]))
        assert shim.take(time.monotonic_ns())["cookie"].tolist() == [5, 6]
    assert shim.refused == 0
    program.tell(record(5, 0, flags=int(Flag.CLOSED)))
    _taken(shim)
    program.tell(record(7, 2))
    assert _taken(shim)["cookie"].tolist() == [7], "a place that is given back goes to who waits"
    program.close()
    shim.close()


def test_time_never_runs_backwards_in_a_flow(shim: ProcessShim, tmp_path: Path) -> None:
    program = Program(tmp_path / "socket")
    _taken(shim)
    now_ns = time.monotonic_ns()
    program.tell(np.concatenate([record(5, time_ns=now_ns), record(5, time_ns=now_ns - 1), record(5, time_ns=now_ns)]))
    assert len(_taken(shim)) == 1
    program.close()


def test_a_cookie_belongs_to_who_had_it_first_and_to_the_kernel_before_all(shim: ProcessShim, tmp_path: Path) -> None:
    programs = [Program(tmp_path / "socket") for _ in range(2)]
    _taken(shim)
    programs[0].tell(record(5))
    assert len(_taken(shim)) == 1
    programs[1].tell(record(5))
    assert len(_taken(shim)) == 0
    shim.give_way(np.array([5], np.uint64))
    assert _taken(shim)["flags"].tolist() == [int(Flag.CLOSED)]
    for program in programs:
        program.close()


def test_whoever_writes_nonsense_is_dropped_and_the_others_are_heard(shim: ProcessShim, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    good = Program(tmp_path / "socket")
    for _ in range(20):
        bad = Program(tmp_path / "socket")
        _taken(shim)
        bad.ring.view(np.uint8)[:] = rng.integers(0, 256, bad.ring.nbytes, np.uint8)
        bad.written += np.uint64(rng.choice([1, 200, 1024, 1025, 1 << 40]))
        good.tell(record(5))
        _taken(shim)
        assert _taken(shim).dtype == FLOW_STATS_DTYPE
        bad.close()
    good.tell(record(5))
    assert _taken(shim)["cookie"].tolist() == [5]
    good.close()


def test_nobody_keeps_the_others_waiting(shim: ProcessShim, tmp_path: Path) -> None:
    greedy, modest = Program(tmp_path / "socket"), Program(tmp_path / "socket")
    _taken(shim)
    now_ns = time.monotonic_ns()
    shim.take(now_ns)
    greedy.tell(np.concatenate([record(5, time_ns=now_ns - 2000 + i) for i in range(1024)]))
    modest.tell(record(6, time_ns=now_ns))
    batch = shim.take(now_ns)
    assert np.count_nonzero(batch["cookie"] == 5) <= RECORDS_AT_ONCE
    assert np.count_nonzero(batch["cookie"] == 6) == 1
    assert len(shim.take(now_ns)) == 0, "what is left waits until time has passed"
    for program in (greedy, modest):
        program.close()


def test_a_program_that_is_wrong_all_the_time_is_not_heard_any_more(shim: ProcessShim, tmp_path: Path) -> None:
    program = Program(tmp_path / "socket")
    _taken(shim)
    program.tell(np.concatenate([record(5), *[record(0)] * (MOST_BAD + 1)]))
    assert [r for r in _taken(shim) if not r["flags"] & Flag.CLOSED] == []
    assert program.socket.recv(1) == b""
    program.close()


def test_memory_that_could_be_taken_away_is_refused(shim: ProcessShim, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    read_end, write_end = os.pipe()
    for program in (
        Program(path, seals=SEALS & ~2),  # it may shrink, and whoever reads it then dies
        Program(path, size=_alcc.LINK_BYTES // 2),
        Program(path, size=2 * _alcc.LINK_BYTES),
    ):
        _taken(shim)
        assert program.socket.recv(1) == b""
        program.close()
    other = Program(path, event_fd=os.open(tmp_path, os.O_RDONLY))  # a folder cannot be waited for
    _taken(shim)
    assert other.socket.recv(1) == b""
    other.close()
    late = Program(path, event_fd=write_end)
    _taken(shim)  # a pipe can, and is never read
    late.close()
    os.close(read_end)


@contextlib.contextmanager
def _lingering() -> Iterator[socket.socket]:
    """Yield a connection whose last close() waits for the peer, which reads nothing until the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with listener.accept()[0]:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.send(bytes(1 << 20))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
            yield sock


@pytest.mark.parametrize("way", ["memory", "further", "another message"])
def test_a_connection_that_closes_late_keeps_nobody_waiting(shim: ProcessShim, tmp_path: Path, way: str) -> None:
    """Whoever closed it last waited for its peer, and so did the loop, for as long as the program had it linger."""
    path = tmp_path / "socket"
    with _lingering() as sock:
        program = Program(path, memory_fd=sock.fileno() if way == "memory" else None)
        if way == "another message":
            for _ in range(2):
                socket.send_fds(program.socket, [b"M"], [sock.fileno()])
        elif way == "further":
            program.socket.close()
            program.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program.socket.connect(str(path))
            socket.send_fds(program.socket, [b"M"], [program.memory_fd, program.event_fd, sock.fileno()])
        sock.close()  # what is on its way to the daemon is the last
        begin_s = time.monotonic()
        for _ in range(6):
            shim.take(time.monotonic_ns())
        assert time.monotonic() - begin_s < LINGER_S / 2
        program.close()


def test_programs_that_are_refused_start_no_threads_without_end(
    shim: ProcessShim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection beyond a user's number had a thread that waited for what lay in it unread."""
    most = 2
    monkeypatch.setattr(handed, "MOST_CLOSING", most)
    monkeypatch.setattr(processes, "MOST_OF_A_USER", 0)
    with contextlib.ExitStack() as stack:
        for _ in range(most + 2):
            sock = stack.enter_context(_lingering())
            caller = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            caller.connect(str(tmp_path / "socket"))
            socket.send_fds(caller, [b"M"], [sock.fileno()])
            sock.close()  # what is on its way to the daemon is the last
        for _ in range(most + 2):
            shim.take(time.monotonic_ns())
        assert sum(thread.name == "closing" for thread in threading.enumerate()) == most


def test_a_place_that_is_taken_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DaemonError, match="something else is there"):
        listen(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"

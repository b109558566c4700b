"""The gate: never a byte lost, never a wake-up lost, and the kernel holds no more than the cap."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.gated import CAP_PKTS, received, serving, settings
from helpers.gated.server import LOOPS, MSS_BYTES, ONE_BY_ONE, pattern
from reinet.alcc.sums import Sums

MODES = [*ONE_BY_ONE, *LOOPS, "asyncio"]


def _digest(size: int) -> tuple[int, str]:
    return size, hashlib.sha256(pattern(size)).hexdigest()


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_sending_brings_every_byte(mode: str) -> None:
    size = 1_000_003
    for _ in range(5):  # a receiver that the host favours may take all before a look
        report = Sums()
        with serving(mode, size, 1, settings(report=report.path)) as server:
            assert received(server.connect()) == _digest(size)
            server.ended()
        total = report.total()
        if mode == "once" or total["closings"]:
            break
    if mode == "once":
        assert total["closings"] == 0, "EPOLLONESHOT cannot be withheld: it runs uncapped"
    else:
        assert total["flows"] == 1
        assert total["bytes"] == size
        assert total["closings"] > 0, "the gate never closed: nothing was tested"


def test_every_connection_that_is_let_go_is_counted() -> None:
    """Whoever read 1 took one of them for ungated, where all were: it counted the reasons."""
    size, report = 1_000_003, Sums()
    with serving("once", size, 3, settings(report=report.path)) as server:
        for sock in [server.connect(receive_buffer_bytes=4096) for _ in range(3)]:
            assert received(sock) == _digest(size)
        server.ended()
    assert (report.total()["flows"], report.total()["not_gated"]) == (3, 3)


@pytest.mark.parametrize("size", [1, 2, MSS_BYTES - 1, MSS_BYTES * CAP_PKTS, MSS_BYTES * CAP_PKTS + 1, 65_537])
@pytest.mark.parametrize("mode", ["blocking", "edge", "poll"])
def test_sizes_around_segments_and_caps_arrive_whole(mode: str, size: int) -> None:
    with serving(mode, size, 1, settings()) as server:
        assert received(server.connect()) == _digest(size)
        server.ended()


@pytest.mark.parametrize("mode", ["write", "sendfile", "edge"])
def test_a_hundred_megabytes_arrive_whole(mode: str) -> None:
    size = 100_000_000
    with serving(mode, size, 1, settings("fixed:4000")) as server:
        assert received(server.connect()) == _digest(size)
        server.ended()


def test_the_kernel_holds_no_more_than_the_cap_and_says_so_to_every_waiter() -> None:
    size = 4_000_000
    with serving("held", size, 1, settings()) as server:
        sock = server.connect(receive_buffer_bytes=4096)
        told = server.told()
        assert told["held"] <= CAP_PKTS * MSS_BYTES
        assert told["sent"] < size / 2
        assert not told["writable"], "epoll says that a closed gate is writable"
        assert not told["polled"], "select says that a closed gate is writable"
        assert received(sock) == _digest(size)
        server.ended()
    with serving("held", size, 1, None) as server:  # without the gate the kernel takes far more
        sock = server.connect(receive_buffer_bytes=4096)
        assert server.told()["held"] > 10 * CAP_PKTS * MSS_BYTES
        assert received(sock) == _digest(size)
        server.ended()


@pytest.mark.parametrize("mode", ["level", "edge", "demand", "poll"])
def test_ten_thousand_openings_lose_no_wake_up(mode: str) -> None:
    clients, size, openings = 50, 1_500_000, 0
    for _ in range(20):  # how often a gate closes for so many bytes is the host's; one round or two will do
        report = Sums()
        with serving(mode, size, clients, settings("fixed:4", report=report.path)) as server:
            socks = [server.connect() for _ in range(clients)]
            with ThreadPoolExecutor(clients) as readers:
                got = list(readers.map(received, socks))
            server.ended()
        assert got == [_digest(size)] * clients
        total = report.total()
        assert 0 <= total["closings"] - total["openings"] <= clients  # a gate may be closed when its socket goes
        openings += total["openings"]
        if openings >= 10_000:
            return
    pytest.fail(f"only {openings} openings: little was tested")


def test_a_slow_client_gets_every_byte() -> None:
    size = 60_000
    with serving("edge", size, 1, settings("fixed:4")) as server:
        sock = server.connect(receive_buffer_bytes=2048)
        digest, count = hashlib.sha256(), 0
        while block := sock.recv(997):
            digest.update(block)
            count += len(block)
            time.sleep(0.001)
        sock.close()
        assert (count, digest.hexdigest()) == _digest(size)
        server.ended()


@pytest.mark.parametrize("mode", ["blocking", "write", "with_timeout", "edge", "poll"])
def test_a_client_that_leaves_ends_its_transfer_and_no_other(mode: str) -> None:
    size = 3_000_000
    with serving(mode, size, 2, settings()) as server:
        leaving = server.connect(receive_buffer_bytes=4096)
        if mode not in ("edge", "poll"):  # they serve one client after the other
            leaving.recv(1000)
            leaving.close()  # with bytes unread: a reset
            assert received(server.connect()) == _digest(size)
            assert server.told()["error"] in ("ConnectionResetError", "BrokenPipeError", "AssertionError")
        else:
            staying = server.connect()
            leaving.recv(1000)
            leaving.close()
            assert received(staying) == _digest(size)
        server.ended()


@pytest.mark.parametrize("unread", [b"", b"unread"], ids=["nothing_unread", "something_unread"])
def test_the_peer_of_a_server_that_is_killed_gets_what_it_would_have_got(unread: bytes) -> None:
    """All that the kernel had taken, then the end; a reset where the server had not read all that came."""
    ends = []
    for asked in (settings(), None):
        with serving("held", 20_000_000, 1, asked) as server:
            sock = server.connect(receive_buffer_bytes=4096)
            sock.sendall(unread)
            taken = server.told()["sent"]
            server.process.kill()
            server.process.wait()
            got, end = b"", "EOF"
            try:
                while block := sock.recv(1 << 18):
                    got += block
            except ConnectionResetError:
                end = "reset"
            sock.close()
        assert got == pattern(len(got))
        assert unread or len(got) >= taken > 0, "bytes that were taken are lost"
        ends.append(end)
    assert ends == 2 * ["reset" if unread else "EOF"]


def test_a_closed_gate_costs_next_to_nothing() -> None:
    for mode in ("edge", "level", "blocking"):
        with serving(mode, 4_000_000, 1, settings("fixed:4")) as server, server.connect(receive_buffer_bytes=4096):
            time.sleep(0.5)
            shares = []  # on a busy host a look takes several times as long: the least of three counts
            while len(shares) < 3 and min(shares, default=1.0) > 0.02:
                before_s = _cpu_s(server.process.pid)
                time.sleep(2)
                shares.append((_cpu_s(server.process.pid) - before_s) / 2)
            assert min(shares) <= 0.02, f"{mode}: a closed gate takes {min(shares):.0%} of a core"


def test_idle_connections_wake_nobody() -> None:
    with serving("blocking", 1000, 2, settings()) as server:
        assert received(server.connect())[0] == 1000  # the pacer has had work and sleeps again
        time.sleep(0.3)
        before = _switches(server.process.pid)
        time.sleep(2)
        assert _switches(server.process.pid) == before


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _switches(pid: int) -> dict[str, str]:
    """How often each thread of a process came to run, by its own will."""
    return {
        task.name: line
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary")
    }

"""Copa, Verus and Sprout through the gate: what TCP_INFO tells them, and that no byte is lost under them."""

import ctypes
import hashlib
import time
from collections import deque

import pytest

from helpers.gated import seen_in, serving
from helpers.gated.server import MSS_BYTES, pattern
from reinet.alcc.launch import Law, Settings, find_preload
from reinet.alcc.sums import Sums
from reinet.cli.run import law_of
from reinet.core.errors import ReinetError
from reinet.core.target import Target

LAWS = ["copa", "verus", "sprout"]
MS = 1_000_000
TARGET = Target.parse("+30ms")


class _View(ctypes.Structure):
    _fields_ = (
        ("now_ns", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in (
            "segments_out", "segments_in", "delivered_pkts", "in_flight_pkts", "srtt_us", "min_rtt_us")),
    )  # fmt: skip


class _Tcp:
    """A flow over a link of a constant rate, behind a window that a law sets at each look; RTT 40 ms.

    ``pkts_per_ack``: an ACK is of so many packets; it comes with the last, and its RTT is the first one's.
    """

    BASE_NS = 40 * MS

    def __init__(self, law: str, pkts_per_s: int = 1000, look_ns: int = 2 * MS, pkts_per_ack: int = 1) -> None:
        self._library = ctypes.CDLL(str(find_preload()))
        self._library.reinet_alcc_law_new.restype = ctypes.c_void_p
        self._law = ctypes.c_void_p(self._library.reinet_alcc_law_new(law.encode()))
        assert self._law
        self._service_ns, self._look_ns = 10**9 // pkts_per_s, look_ns
        self._pkts_per_ack = pkts_per_ack
        self._unacked_ns: list[int] = []  # when those were sent that came and are not acknowledged
        self._view = _View(srtt_us=40_000, min_rtt_us=40_000)
        self._now_ns = 10**9
        self._link_free_ns = 0
        self._arrivals: deque[tuple[int, int]] = deque()  # of ACKs: when, and when the packet was sent
        self._cap_pkts = 1
        self._srtt_us = 40_000.0
        self.delivered_pkts = 0
        self.queue_ms: list[float] = []
        self.caps_pkts: list[int] = []

    def end(self) -> None:
        self._library.reinet_alcc_law_end(self._law)

    def run(self, seconds: float, silent: bool = False) -> None:
        """Goes on; ``silent``: the link carries nothing, and what was out is late by that."""
        until_ns = self._now_ns + round(seconds * 1e9)
        if silent:
            self._link_free_ns = until_ns
            self._arrivals = deque((until_ns + at_ns - self._now_ns, sent_ns) for at_ns, sent_ns in self._arrivals)
        while self._now_ns < until_ns:
            while self._arrivals and self._arrivals[0][0] <= self._now_ns:
                self._hear(*self._arrivals.popleft())
            self._look()
            while len(self._arrivals) + len(self._unacked_ns) < self._cap_pkts:
                self._send()
            self._look()  # as the gate does when a write wants more
            self._now_ns += self._look_ns

    def grants_packets(self) -> bool:
        return bool(self._library.reinet_alcc_law_grants(self._law))

    def overshoot(self, pkts: int) -> int:
        """That many more go out than the window has room for; returns what it is at the next ACK."""
        while len(self._arrivals) + len(self._unacked_ns) < self._cap_pkts + pkts:
            self._send()
        self._look()
        self._hear(*self._arrivals.popleft())
        self._look()
        return self._cap_pkts

    def lose(self, pkts: int) -> None:
        """That many of what is in flight are gone, and go again at once."""
        for _ in range(pkts):
            self._arrivals.popleft()
        self._look()
        for _ in range(pkts):
            self._send()

    def pause(self, seconds: float) -> None:
        """All that is out arrives; then nothing is sent, and nobody looks."""
        while self._arrivals:
            self._now_ns = max(self._now_ns, self._arrivals[0][0])
            self._hear(*self._arrivals.popleft())
        self._look()
        self._now_ns += round(seconds * 1e9)

    def _send(self) -> None:
        self._link_free_ns = max(self._now_ns + self.BASE_NS // 2, self._link_free_ns + self._service_ns)
        self._arrivals.append((self._link_free_ns + self.BASE_NS // 2, self._now_ns))
        self._view.segments_out += 1

    def _hear(self, at_ns: int, sent_ns: int) -> None:
        self._unacked_ns.append(sent_ns)
        if len(self._unacked_ns) == self._pkts_per_ack:
            self._srtt_us += ((at_ns - self._unacked_ns[0]) / 1000 - self._srtt_us) / 8
            self._view.segments_in += 1
            self._view.delivered_pkts += self._pkts_per_ack
            self._unacked_ns.clear()
        self.delivered_pkts += 1
        self.queue_ms.append((at_ns - sent_ns - self.BASE_NS) / MS)

    def _look(self) -> None:
        self._view.now_ns = self._now_ns
        self._view.in_flight_pkts = len(self._arrivals) + len(self._unacked_ns)
        self._view.srtt_us = round(self._srtt_us)
        self._cap_pkts = self._library.reinet_alcc_law_look(self._law, ctypes.byref(self._view))
        self.caps_pkts.append(self._cap_pkts)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_fills_a_link_that_it_sees_through_looks(law: str) -> None:
    """1000 packets a second and 40 ms: 40 packets fill it."""
    tcp = _Tcp(law)
    tcp.run(10.0)
    before_pkts, before = tcp.delivered_pkts, len(tcp.queue_ms)
    tcp.run(10.0)
    share = (tcp.delivered_pkts - before_pkts) / 10_000
    queue_ms = sum(tcp.queue_ms[before:]) / len(tcp.queue_ms[before:])
    tcp.end()
    assert share > {"copa": 0.9, "verus": 0.8, "sprout": 0.6}[law], (
        "Sprout holds back: 95 % of its forecasts are too low"
    )
    assert queue_ms < {"copa": 30.0, "verus": 400.0, "sprout": 100.0}[law]


@pytest.mark.parametrize("law", LAWS)
def test_a_law_whose_window_moves_with_the_flight_says_so(law: str) -> None:
    """The gate makes nothing up for such a window: what more it let through counted as in flight and made room for as
    much again, and Sprout's delay over a cellular link was 11 % above that over UDP."""
    windows_pkts = []
    for beyond_pkts in (0, 5):
        tcp = _Tcp(law)
        tcp.run(3.0)
        windows_pkts.append(tcp.overshoot(beyond_pkts))
        grants = tcp.grants_packets()
        tcp.end()
    assert grants is (windows_pkts[1] > windows_pkts[0])
    assert grants is (law != "copa")


def test_acks_of_two_packets_do_not_look_like_a_queue() -> None:
    """The older of two packets waits for the other at the receiver: 7 ms here, as much as half of Copa's own queue.

    It took that for a queue that never empties, of others, and filled the buffer: 332 ms.
    """
    delivered_pkts, queue_ms = [], []
    for pkts_per_ack in (1, 2):
        tcp = _Tcp("copa", pkts_per_s=150, pkts_per_ack=pkts_per_ack)
        tcp.run(20.0)
        tcp.end()
        delivered_pkts.append(tcp.delivered_pkts)
        queue_ms.append(sum(tcp.queue_ms) / len(tcp.queue_ms))
    assert delivered_pkts[1] > 0.9 * delivered_pkts[0]
    assert queue_ms[1] < 60.0


@pytest.mark.parametrize("law", LAWS)
def test_losses_and_an_outage_leave_the_law_in_step_with_the_kernel(law: str) -> None:
    """What is given up and comes all the same, what is lost: the window stays one that fills the link again."""
    tcp = _Tcp(law)
    tcp.run(5.0)
    tcp.lose(3)
    tcp.run(2.0)
    tcp.run(3.0, silent=True)  # beyond each law's timeout
    tcp.run(10.0)
    before_pkts = tcp.delivered_pkts
    tcp.run(5.0)
    share = (tcp.delivered_pkts - before_pkts) / 5000
    tcp.end()
    assert share > 0.5
    assert max(tcp.caps_pkts) < 5000


def test_after_a_long_pause_the_law_starts_anew() -> None:
    tcp = _Tcp("copa")
    tcp.run(10.0)
    assert tcp.caps_pkts[-1] > 25
    tcp.pause(1.0)
    tcp._look()
    assert tcp.caps_pkts[-1] > 25, "it still knows the path"
    tcp.pause(3600.0)
    began_s = time.monotonic()
    tcp._look()
    tcp.end()
    assert tcp.caps_pkts[-1] == 10, "Copa's first window"
    assert time.monotonic() - began_s < 5.0, "no clock had to catch up"


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mode", ["blocking", "edge", "asyncio"])
def test_bytes_pass_whole_under_a_law(law: str, mode: str) -> None:
    size = 1_000_003
    sums = Sums()
    asked = Settings(Law(law), TARGET, report=sums.path)
    digest = hashlib.sha256()
    with serving(mode, size, 1, asked) as server, server.connect(receive_buffer_bytes=4096) as sock:
        while block := sock.recv(1 << 14):
            digest.update(block)
            time.sleep(0.002)  # slow enough for the window to bind
        server.ended()
    assert digest.digest() == hashlib.sha256(pattern(size)).digest()
    total = sums.total()
    assert total["bytes"] == size
    assert total["closings"] > 0, "the law's window was to bind, without --always"
    assert total["not_gated"] == 0


def test_after_a_pause_longer_than_a_lease_the_law_still_binds() -> None:
    """Nobody looks at a connection that sends nothing: its lease lapses, and the first write must ask the law anew."""
    taken = {law: seen_in("after_a_pause", Settings(Law(law), TARGET))[0]["taken"] for law in ("none", "copa")}
    first_window_bytes = 10 * MSS_BYTES
    assert 0 < taken["copa"] <= 2 * first_window_bytes
    assert taken["none"] > 5 * first_window_bytes, "the kernel takes more than the law, so it was the law"


def test_in_shadow_a_law_gates_nothing() -> None:
    sums = Sums()
    asked = Settings(Law("copa"), TARGET, shadow=True, report=sums.path)
    with serving("blocking", 100_000, 1, asked) as server, server.connect() as sock:
        while sock.recv(1 << 16):
            pass
        server.ended()
    assert sums.total()["closings"] == 0


def test_names_of_laws_are_known_on_both_sides_and_others_refused() -> None:
    replay = ctypes.CDLL(str(find_preload())).reinet_alcc_replay
    for law in (*LAWS, "copa-default"):
        assert law_of(law, TARGET) == Law(law)
        assert replay(f"law={law} target=1:30000".encode(), None, ctypes.c_size_t(0), None, None) == 0
    for law in ("cubic", "bbr", "copa:2", "verus ", "Copa", "sprout2", "cop"):
        assert replay(f"law={law},".encode(), None, ctypes.c_size_t(0), None, None) == -1, law
        with pytest.raises(ReinetError):
            law_of(law, TARGET)

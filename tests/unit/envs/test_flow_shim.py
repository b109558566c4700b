"""One flow's shim: whose records and caps pass, what ends a run, and when a lease has lapsed."""

import numpy as np
import pytest

from reinet.core import LinkError
from reinet.envs.flow_shim import FIRST_RECORD_TIMEOUT_S, RECORD_TIMEOUT_S, FlowShim
from reinet.kshim.fake import FakeShim
from reinet.kshim.leases import LEASE_MS, LeaseKeeper
from reinet.kshim.shim import Shim

COOKIE = 7


class Run:
    """A followed flow and another one beside it; time is the test's."""

    def __init__(self) -> None:
        self.fake = FakeShim()
        self.dead = False
        self.shim = FlowShim(self.fake, self._check, lambda: self.fake.now_ns)
        self.keeper = LeaseKeeper(self.shim, clock_ns=lambda: self.fake.now_ns)
        for cookie in (COOKIE, 8):
            self.fake.open_flow(cookie)
        self.shim.follow(COOKIE)

    def _check(self) -> None:
        if self.dead:
            raise LinkError("the sender ended")

    def cap(self, cap_pkts: int) -> None:
        self.fake.feed(COOKIE, target_us=50_000)
        self.keeper.set(self.shim.poll(0), np.array([cap_pkts], np.uint32))

    def wait(self, ms: float, tick: bool) -> None:
        self.fake.advance_ms(ms)
        if tick:
            self.keeper.tick(self.fake.now_ns)


def test_it_is_a_shim_and_passes_on_what_is_its_flows() -> None:
    run = Run()
    assert isinstance(run.shim, Shim)
    run.fake.feed(8)
    run.cap(20)
    assert run.fake.cap_pkts(COOKIE) == 20
    run.fake.feed(8)
    assert len(run.shim.poll(0)) == 0
    run.keeper.release_all()
    assert run.fake.cap_pkts(COOKIE) == 0


def test_the_cap_of_an_idle_flow_is_lifted_on_purpose() -> None:
    run = Run()
    run.cap(20)
    run.fake.set_outstanding(COOKIE, False)
    for _ in range(30):
        run.wait(150, tick=True)
    assert run.fake.cap_pkts(COOKIE) == 0
    assert run.shim.end() is None


def test_a_cap_that_is_renewed_has_not_lapsed() -> None:
    run = Run()
    run.cap(20)
    for _ in range(30):
        run.wait(150, tick=True)
    assert run.fake.cap_pkts(COOKIE) == 20
    assert run.shim.end() is None


@pytest.mark.parametrize("then", ["renewed", "decided", "released", "ended"])
def test_a_cap_that_nobody_renewed_in_time_has_lapsed(then: str) -> None:
    run = Run()
    run.cap(20)
    run.wait(LEASE_MS + 200, tick=False)
    assert run.fake.cap_pkts(COOKIE) == 0
    if then == "renewed":
        run.keeper.tick(run.fake.now_ns)
    elif then == "decided":
        run.cap(30)
    elif then == "released":
        run.keeper.release_all()
    assert run.shim.end() == ("the loop lagged: the cap lapsed, because nothing renewed its lease of 500 ms for 700 ms")
    run.shim.follow(8)
    assert run.shim.end() is None  # another flow's run is its own


@pytest.mark.parametrize("cap_pkts", [0, 20])
def test_a_flow_without_a_cap_has_none_to_lose(cap_pkts: int) -> None:
    run = Run()
    run.cap(cap_pkts)
    run.keeper.release_all()
    run.wait(10_000, tick=False)
    assert run.shim.end() is None


def test_a_flow_that_ends_or_falls_silent_is_an_error_and_a_dead_link_says_so_first() -> None:
    run = Run()
    run.cap(0)
    run.wait(RECORD_TIMEOUT_S * 1000, tick=False)
    assert len(run.shim.poll(0)) == 0
    run.wait(1, tick=False)
    with pytest.raises(LinkError, match="no record for 5 s"):
        run.shim.poll(0)
    run.fake.close_flow(COOKIE)
    with pytest.raises(LinkError, match="was closed while it was to send"):
        run.shim.poll(0)
    run.dead = True
    with pytest.raises(LinkError, match="sender ended"):
        run.shim.poll(0)


def test_a_flow_whose_first_ack_an_outage_holds_up_is_waited_for() -> None:
    run = Run()
    run.wait(FIRST_RECORD_TIMEOUT_S * 1000, tick=False)
    assert len(run.shim.poll(0)) == 0
    run.wait(1, tick=False)
    with pytest.raises(LinkError, match="no record for 60 s, nor any ACK"):
        run.shim.poll(0)
    run.shim.follow(8)
    run.wait(FIRST_RECORD_TIMEOUT_S * 1000, tick=False)
    assert len(run.shim.poll(0)) == 0


def test_a_flow_that_was_let_go_may_end() -> None:
    run = Run()
    run.shim.end()
    run.fake.close_flow(COOKIE)
    assert len(run.shim.poll(0)) == 0


def test_without_a_shim_there_is_nothing_but_the_link() -> None:
    dead: list[bool] = []

    def check() -> None:
        if dead:
            raise LinkError("the sender ended")

    shim = FlowShim(None, check)
    shim.follow(COOKIE)
    assert len(shim.poll(1)) == 0
    shim.close()
    dead.append(True)
    with pytest.raises(LinkError, match="sender ended"):
        shim.poll(1)

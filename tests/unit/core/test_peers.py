"""What flows to the same peer know together: by hand, then in the simulator."""

import numpy as np
import numpy.typing as npt
import pytest

from helpers.links import constant
from helpers.period import SILENT
from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.batch import logs
from reinet.core import FLOW_STATS_DTYPE, Flag
from reinet.core.peers import Peers, peer_of, peers_of_program
from reinet.core.state import StateBank
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch

Stats = npt.NDArray[np.void]
PERIOD_MS = 20
CLIENT, OTHER_CLIENT = peer_of("198.51.100.7"), peer_of("2001:db8::7")


def record(
    number: int,
    time_ms: int,
    min_rtt_ms: float,
    rtt_ms: float,
    kbytes: float = 15,
    peer: int = CLIENT,
    begun_ns: int = 10**12,
) -> Stats:
    """One record of a flow; its slot and cookie are by its number."""
    s = np.zeros(1, FLOW_STATS_DTYPE)
    s["cookie"], s["slot"], s["peer"] = number + 10, number, peer
    s["time_ns"], s["period_ns"] = begun_ns + time_ms * 10**6, PERIOD_MS * 10**6
    s["min_rtt_us"] = min_rtt_ms * 1000
    s["rtt_mean_us"] = s["rtt_least_us"] = s["rtt_last_us"] = s["srtt_us"] = rtt_ms * 1000
    s["rtt_samples"], s["mss_bytes"], s["delivered_bytes"], s["cap_pkts"] = 5, 1448, kbytes * 1000, 40
    return s


def lent_ms(
    seconds: float, own_rtt_ms: float = 60, peer: int = CLIENT, sees: float = 0, shared_uplink: bool = False
) -> list[float]:
    """The minimum RTTs (ms) in the records of a flow that has seen 58 ms at least, and, after ``sees`` s if they are
    given, 21 ms, beside one that knows of a path of 20 ms and waits for 60 ms."""
    peers = Peers(shared_uplink)
    found = []
    for time_ms in range(PERIOD_MS, round(seconds * 1000), PERIOD_MS):
        peers.annotate(record(0, time_ms, 20, 60))
        own_ms = 21 if sees and time_ms > sees * 1000 else 58
        other = record(1, time_ms, own_ms, own_rtt_ms, peer=peer)
        peers.annotate(other)
        found.append(int(other["min_rtt_us"][0]) / 1000)
    return found


def test_a_flow_in_the_same_queue_knows_the_path_from_the_one_that_has_seen_it() -> None:
    found = lent_ms(3)
    first = found.index(20)
    assert 8 * 60 <= (first + 1) * PERIOD_MS < 8 * 60 + 100, "after eight round trips"
    assert set(found[:first]) == {58}
    assert set(found[first:]) == {20}


def test_a_tenth_more_or_less_is_the_records_own() -> None:
    """Over links whose rate jumps, records of one queue that end at different instants are so far apart."""
    assert lent_ms(3, 67)[-1] == 20


@pytest.mark.parametrize("rtt_ms", [45, 51, 70, 75, 120])
def test_one_that_waits_for_another_time_is_on_another_path(rtt_ms: float) -> None:
    """As behind an address that many share."""
    assert set(lent_ms(10, rtt_ms)) == {58}


def test_nor_does_it_know_of_other_peers() -> None:
    assert set(lent_ms(10, peer=OTHER_CLIENT)) == {58}
    assert set(lent_ms(10, peer=0)) == {58}


def test_unless_all_wait_in_the_hosts_own_uplink() -> None:
    assert lent_ms(10, peer=OTHER_CLIENT, shared_uplink=True)[-1] == 20
    assert set(lent_ms(10, own_rtt_ms=120, peer=OTHER_CLIENT, shared_uplink=True)) == {58}, "behind it is another path"


@pytest.mark.parametrize("shared_uplink", [False, True])
def test_what_programs_say_of_peers_concerns_only_flows_of_their_user(shared_uplink: bool) -> None:
    named = np.array([CLIENT, OTHER_CLIENT, 0, 1], np.uint64)
    ours, others = (peers_of_program(named, uid) for uid in (1000, 1001))
    assert len({*named, *ours, *others}) == 12
    for peer in (*ours, *others):
        assert set(lent_ms(10, peer=int(peer), shared_uplink=shared_uplink)) == {58}


def test_what_is_lent_is_given_back_after_the_next_looks() -> None:
    found = lent_ms(120)
    first = found.index(20)
    back = found.index(58, first)
    assert (back - first) * PERIOD_MS == 20_000
    again = found.index(20, back)
    assert 60_000 <= (again - back) * PERIOD_MS < 62_000


def test_a_flow_that_has_seen_its_path_keeps_what_it_has_seen() -> None:
    assert lent_ms(30, sees=15)[-1] == 21


def test_what_was_lent_is_not_lent_on() -> None:
    """The flow that has seen 20 ms ends, and by now the path has 58 ms; there is always another connection."""
    peers = Peers()
    latest: dict[int, float] = {}
    for time_ms in range(PERIOD_MS, 120_000, PERIOD_MS):
        if time_ms < 5000:
            peers.annotate(record(0, time_ms, 20, 60))
        for number in range(10):
            if 0 <= time_ms - 12_000 * number < 30_000:
                s = record(1 + number, time_ms, 58, 60)
                peers.annotate(s)
                if s["min_rtt_us"][0] < 58_000:
                    latest[number] = time_ms / 1000
    assert set(latest) == {0}, "which was there beside it"
    assert latest[0] < 5 + 20


@pytest.mark.parametrize("begun_ns", [0, 10**12])
def test_the_first_record_makes_its_flow_the_one_that_knows_also_when_the_clock_has_just_begun(begun_ns: int) -> None:
    peers = Peers()
    for time_ms in range(PERIOD_MS, 600, PERIOD_MS):
        peers.annotate(record(0, time_ms, 20, 60, begun_ns=begun_ns))
        other = record(1, time_ms, 58, 60, begun_ns=begun_ns)
        peers.annotate(other)
    assert other["min_rtt_us"][0] == 20_000


def test_a_socket_that_connects_anew_takes_nothing_of_its_former_connection_along() -> None:
    peers = Peers()
    peers.annotate(record(0, 100, 20, 40))
    peers.annotate(record(1, 110, 20, 40))
    silence = record(1, 360, 20, 40, kbytes=500)
    silence["flags"] = SILENT
    peers.annotate(silence)
    peers.forget(np.array([1]), silence["cookie"])
    first = record(1, 2000, 20, 40, kbytes=15)
    peers.annotate(first)
    assert first["peer_delivered_bytes"][0] == 15_000


def test_the_sum_of_a_peers_flows_and_the_share_of_it() -> None:
    """The two take turns, 20 ms each: each sees half of what both get, and its own rate as steady as the link's."""
    peers, bank = Peers(), StateBank(2)
    seen = []
    for turn in range(200):
        for number in (0, 1):
            s = record(number, (turn + 1) * PERIOD_MS, 20, 40, kbytes=60 if turn % 2 == number else 0)
            peers.annotate(s)
            bank.update([number], s)
            seen.append(s)
    late = np.concatenate(seen[-100:])
    own = late[late["slot"] == 1]
    assert set(own["delivered_bytes"].tolist()) == {0, 60_000}
    assert set(own["peer_delivered_bytes"].tolist()) == {60_000}
    np.testing.assert_allclose(own["share_bytes"], 30_000, rtol=0.05)
    assert (late["flags"] & Flag.COMPANY).all()


def test_one_that_is_not_capped_is_no_part_of_the_sum() -> None:
    """As a hold-out's, which takes what the capped ones leave: to them it is somebody else's (others.hpp)."""
    peers = Peers()
    for turn in range(100):
        plain, capped = (record(number, (turn + 1) * PERIOD_MS, 20, 40, kbytes=60) for number in (0, 1))
        plain["cap_pkts"] = 0
        for s in (plain, capped):
            peers.annotate(s)
            assert s["peer_delivered_bytes"][0] == s["share_bytes"][0] == s["delivered_bytes"][0]
            assert (s["flags"][0] & Flag.COMPANY != 0) == (turn > 0 or s is capped)


def test_a_silence_is_counted_once() -> None:
    """Its record tells of the period so far, the one after it of the whole (core/period.h)."""
    peers = Peers()
    peers.annotate(record(0, 100, 20, 40))
    peers.annotate(record(1, 110, 20, 40))
    silence = record(1, 360, 20, 40, kbytes=5)
    silence["period_ns"], silence["flags"] = 250 * 10**6, SILENT
    peers.annotate(silence)
    whole = record(1, 400, 20, 40, kbytes=20)
    whole["period_ns"] = 290 * 10**6
    peers.annotate(whole)
    other = record(0, 410, 20, 40, kbytes=15)
    other["period_ns"] = 310 * 10**6
    peers.annotate(other)
    assert silence["peer_delivered_bytes"][0] == 5_000
    assert whole["peer_delivered_bytes"][0] == 20_000
    assert other["peer_delivered_bytes"][0] == 15_000 + 15_000 + 20_000


@pytest.mark.parametrize("silences", [0, 1, 12])
def test_a_share_does_not_hang_on_how_often_a_silence_was_told(silences: int) -> None:
    """Two take turns; in an outage of 3 s one of them gets 30 KB, of which each record of the silence tells again."""
    peers = Peers()
    for turn in range(200):
        for number in (0, 1):
            peers.annotate(record(number, (turn + 1) * PERIOD_MS, 20, 40, kbytes=60 if turn % 2 == number else 0))
    end_ms = 200 * PERIOD_MS
    for number in range(silences):
        silence = record(1, end_ms + 10 + 250 * (number + 1), 20, 40, kbytes=30)
        silence["period_ns"], silence["flags"] = (10 + 250 * (number + 1)) * 10**6, SILENT
        peers.annotate(silence)
    whole = record(1, end_ms + 3010, 20, 40, kbytes=60)
    whole["period_ns"] = 3010 * 10**6
    peers.annotate(whole)
    share = whole["share_bytes"][0] / whole["peer_delivered_bytes"][0]
    assert share == pytest.approx(0.62, abs=0.05)


@pytest.mark.parametrize(
    ("peer", "shared_uplink", "together"),
    [(CLIENT, False, True), (OTHER_CLIENT, False, False), (OTHER_CLIENT, True, True)],
)
def test_company_is_of_one_queue(peer: int, shared_uplink: bool, together: bool) -> None:
    """A server of many clients always has other flows: they say nothing of a client's own access link."""
    peers = Peers(shared_uplink)
    for turn in range(100):
        first, second = record(0, (turn + 1) * PERIOD_MS, 20, 40), record(1, (turn + 1) * PERIOD_MS, 20, 40, peer=peer)
        for s in (first, second):
            peers.annotate(s)
    assert bool(first["flags"][0] & Flag.COMPANY) == bool(second["flags"][0] & Flag.COMPANY) == together
    assert (first["peer_delivered_bytes"][0] == 2 * first["delivered_bytes"][0]) == together


def test_one_that_is_sent_to_and_answers_nothing_is_no_company() -> None:
    """A client that has gone is sent to for many minutes."""
    peers = Peers()
    seen = []
    for time_ms in range(PERIOD_MS, 20_000, PERIOD_MS):
        gone, s = record(0, time_ms, 20, 40), record(1, time_ms, 20, 40)
        if time_ms > 2000:
            gone["rtt_samples"], gone["delivered_bytes"] = 0, 0
        peers.annotate(gone)
        peers.annotate(s)
        seen.append(bool(s["flags"][0] & Flag.COMPANY))
    assert PERIOD_MS * sum(seen) == pytest.approx(2000 + 5000, abs=2 * PERIOD_MS)


def test_a_flow_alone_has_all_of_it() -> None:
    peers = Peers()
    s = record(0, 20, 20, 40)
    s["flags"] = Flag.COMPANY  # whoever made the record is not to say so
    peers.annotate(s)
    assert s["peer_delivered_bytes"][0] == s["share_bytes"][0] == s["delivered_bytes"][0]
    assert s["flags"][0] == 0


def test_two_peers_of_one_place_do_not_mix() -> None:
    """The table has 1024 places: among so many peers some have the same."""
    peers = Peers()
    for turn in range(3):
        for number in range(3000):
            s = record(number, (turn + 1) * PERIOD_MS, 20, 40, peer=number + 1)
            peers.annotate(s)
            assert s["peer_delivered_bytes"][0] == s["delivered_bytes"][0]


def test_names_of_peers() -> None:
    assert peer_of("198.51.100.7") == peer_of("::ffff:198.51.100.7") != peer_of("198.51.100.8")
    assert peer_of("2001:db8::7") == peer_of("2001:db8::8:7") != peer_of("2001:db8:0:1::7")
    assert peer_of("0.0.0.0") != 0 != peer_of("::")


@pytest.mark.parametrize("agent", ["checkpoints/default", "rule"])
@pytest.mark.parametrize(("flows", "gap_ms"), [(2, 500.0), (3, 1500.0), (4, 0.0), (6, 1500.0)])
def test_flows_that_begin_soon_after_one_another_have_a_short_queue(agent: str, flows: int, gap_ms: float) -> None:
    """The buffer holds 50 ms and plain flows keep 44 of them. Of those that begin behind a full queue none knew its
    path, and the others, who did, gave way: 43 ms for a minute and longer. With the path but not the rate in common the
    model kept 25 ms of four and 26 of six."""
    further = [{"stepped": True, "start_ms": gap_ms * (number + 1)} for number in range(flows - 1)]
    links = [LinkSpec(constant(24.0), seed=seed, flows=further) for seed in range(3)]
    made = make_agent(str(ROOT / agent) if "/" in agent else agent)
    for log in logs(made, links, 30.0):
        late = (log["departure_ms"] > 15_000) & (log["departure_ms"] < 30_000)
        assert log["departure_delay_ms"][late].mean() < 23
        assert np.count_nonzero(late) > 0.97 * 15 * 2000


def test_paths_of_two_lengths_through_one_queue_are_told_apart() -> None:
    link = LinkSpec(constant(24.0), mrtt_ms=20.0, flows=[{"stepped": True, "start_ms": 2000.0, "mrtt_ms": 60.0}])
    sim = SimBatch([link])
    sim.reset()
    least_ms = []
    while sim.stats["time_ns"][0] < 15 * 10**9:
        if sim.stats["cookie"][0] >> np.uint64(32):
            least_ms.append(int(sim.stats["min_rtt_us"][0]) / 1000)
        sim.step_caps([0])
    assert min(least_ms) > 60

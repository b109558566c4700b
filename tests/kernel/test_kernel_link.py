"""Real kernel flows under caps: the cap acts, outages do not lift it, and the environment is SimLink's twin."""

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from helpers.figures import figures_hold
from reinet.core import Flag, LinkError
from reinet.core.state import StateBank
from reinet.core.states.caps import caps_from_actions
from reinet.envs.capped_link import CappedLink
from reinet.envs.kernel_link import KernelLinkEnv
from reinet.envs.kernel_session import KernelRun, KernelSession
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun
from reinet.envs.registration import register_envs
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.trace import Trace
from reinet.kshim.leases import LeaseKeeper
from reinet.kshim.leftovers import leftovers
from reinet.kshim.probe import cgroup2_mount

register_envs()

pytestmark = [pytest.mark.kernel, pytest.mark.mahimahi]

STEADY = LinkSpec(Trace.constant(12, 1))
CAP_PKTS = 25  # 12 Mbit/s x 20 ms is 20 packets


def ownerless() -> set[tuple[str, int]]:
    """Programs and maps of a shim that no process holds: something in the kernel still does."""
    return {(entry.kind, entry.id) for entry in leftovers() if not entry.pids}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """What a session of this process made is gone when it is closed."""
    mount = cgroup2_mount()
    assert mount is not None
    before = ownerless()
    yield
    assert not list(mount.glob(f"reinet-link-{os.getpid()}-*"))
    deadline_s = time.monotonic() + 30  # programs go an RCU grace period after their last socket
    while (left := ownerless() - before) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not left
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert "reinet-netns" not in [Path(f"/proc/{pid}/comm").read_text().strip() for pid in children]


def run(session: KernelSession, seconds: float, decide: Callable[[np.ndarray], int] = lambda record: 0) -> KernelRun:
    """One flow for so long; even a silent one gives a record every 250 ms."""
    session.start()
    end_ns = session.started_ns + round(seconds * 1e9)
    while (record := session.next_record())["time_ns"][0] < end_ns:
        session.set_cap(record, decide(record))
    return session.stop()


def records_without_recovery(run: KernelRun) -> np.ndarray:
    return run.records[(run.records["flags"] & Flag.IN_RECOVERY) == 0]


def test_the_cap_acts_on_a_real_flow_and_removing_it_frees_the_flow() -> None:
    def plain_and_capped() -> tuple[KernelRun, KernelRun]:
        plain, capped = run(session, 4), run(session, 4, lambda record: CAP_PKTS)
        assert plain.records["cwnd_pkts"].max() > 2 * CAP_PKTS
        assert records_without_recovery(capped)["cwnd_pkts"][2:].max() <= CAP_PKTS
        assert not plain.caps_pkts.any()
        assert (capped.caps_pkts == CAP_PKTS).all()
        for done in (plain, capped):
            times_ms = done.records["time_ns"] / 1e6
            assert done.link.start_ms < times_ms[0] < times_ms[-1] < done.link.end_ms + 100
            assert (done.records["target_us"] == 50_000).all()
        return plain, capped

    def check(runs: tuple[KernelRun, KernelRun]) -> None:
        plain, capped = (done.link.metrics for done in runs)
        assert capped.qdelay_mean_ms < min(8, plain.qdelay_mean_ms / 3)  # 3.5 ms measured
        assert capped.throughput_mbps > 10.5

    with closing(KernelSession(STEADY)) as session:
        figures_hold(
            plain_and_capped, check, lambda runs: [r.link.invalid_reason for r in runs if r.link.invalid_reason]
        )


@pytest.mark.parametrize("from_s", [0.0, 2.5], ids=["from its start-up on", "later"])
def test_bbr_does_not_learn_the_cap(from_s: float) -> None:
    """A quarter of what the path holds keeps most of the rate away; BBR's model of the path, and its pacing, stay."""

    def capped() -> KernelRun:
        return run(session, 6, lambda record: 30 * (record["time_ns"][0] > session.started_ns + from_s * 1e9))

    def check(done: KernelRun) -> None:
        held = done.records[done.records["cap_pkts"] == 30]
        held = held[held["time_ns"] > held["time_ns"][0] + 1_500_000_000]  # by then a start-up is over, and drained
        held = held[held["cwnd_pkts"] > 4]  # with four BBR looks for the minimum RTT
        assert np.median(held["delivery_rate_bytes_per_s"]) < 0.4 * 24 / 8 * 1e6
        pace = np.median(held["pacing_rate_bytes_per_s"]) / (24 / 8 * 1e6)
        assert 0.85 < pace < 2.0, "a start-up that the cap ends stands at the cap; one that goes on has nearly three"
        assert not (held["flags"] & Flag.APP_LIMITED).any()

    # It holds 120 packets: a start-up gets there in the fourth round trip, and the cap is in force in the third.
    with closing(KernelSession(LinkSpec(Trace.constant(24, 1), cc="bbr", mrtt_ms=60.0))) as session:
        figures_hold(capped, check, lambda done: done.link.invalid_reason)


@pytest.mark.parametrize("every_ms", [50, None], ids=["an opportunity each 50 ms", "no uplink of its own"])
def test_records_tell_how_long_acks_wait(every_ms: int | None) -> None:
    """By the timestamps of the kernel's own receiver; the link's log says what packets wait."""

    def capped() -> KernelRun:
        return run(session, 6, lambda record: CAP_PKTS)

    def check(done: KernelRun) -> None:
        s = done.records[(done.records["rtt_samples"] > 0) & (done.records["flags"] & Flag.IN_RECOVERY == 0)]
        s = s[s["time_ns"] > s["time_ns"][0] + 2 * 10**9]
        wait_ms = s["ack_wait_us"] / 1000
        queued_ms = s["rtt_mean_us"] / 1000 - wait_ms - 20  # the kernel's least RTT has a wait in it, each round trip
        if every_ms is None:
            assert np.median(wait_ms) < 3
        else:
            assert 10 < np.median(wait_ms) < 40
            assert np.median(queued_ms) == pytest.approx(done.link.metrics.qdelay_mean_ms, abs=6)

    uplink = None if every_ms is None else np.array([every_ms], np.uint32)
    with closing(KernelSession(LinkSpec(Trace.constant(12, 1), uplink=uplink))) as session:
        figures_hold(capped, check, lambda done: done.link.invalid_reason)


def drain(session: KernelSession) -> NoReturn:
    while True:
        session.next_record()


def outage(monkeypatch: pytest.MonkeyPatch | None = None) -> KernelRun:
    """A capped flow through 1 s at 12 Mbit/s, 3 s of nothing, 1.5 s at 12 Mbit/s."""
    before_ms, after_ms = np.arange(1, 1001), np.arange(4000, 5501)
    trace = Trace(np.concatenate([before_ms, after_ms]).astype(np.uint32), "outage")
    if monkeypatch is not None:
        monkeypatch.setattr(LeaseKeeper, "tick", lambda self, now_ns: None)
    with closing(KernelSession(LinkSpec(trace))) as session:
        return run(session, 5.2, lambda record: CAP_PKTS)


def test_an_outage_of_three_seconds_does_not_lift_the_cap() -> None:
    def check(done: KernelRun) -> None:
        silent = (done.records["flags"] & Flag.NO_SAMPLE) != 0
        assert silent.sum() >= 8  # every 250 ms
        assert np.diff(done.records["time_ns"] / 1e6).max() < 400
        assert (done.records["cap_pkts"][2:] == CAP_PKTS).all()
        back = done.records[done.records["time_ns"] > 4_000_000_000]
        assert back["delivered_bytes"].sum() > 500_000
        assert records_without_recovery(done)["cwnd_pkts"][2:].max() <= CAP_PKTS
        assert done.link.invalid_reason is None or "lagged" in done.link.invalid_reason
        assert "lapsed" not in str(done.link.invalid_reason)

    figures_hold(outage, check, lambda done: done.link.invalid_reason)


@pytest.mark.parametrize("cc", ["cubic", "bbr"])
def test_a_flow_whose_cap_fell_in_an_outage_goes_on_when_it_is_over(cc: str) -> None:
    """Of 90 packets in flight the link keeps 40, so 50 are lost from the flight's end, and the cap is 10 by then.

    Without the packet that may follow, the flow stood still for 3.6 s after an outage of 3 s.
    """
    busy_ms = np.arange(1, 3001)
    trace = Trace(np.concatenate([busy_ms, busy_ms + 6000]).astype(np.uint32), "outage")
    targets_us = np.zeros(1, np.uint32)

    def through() -> LinkRun:
        keeper = LeaseKeeper(link.shim)
        caps_pkts = []
        link.start()
        while time.monotonic_ns() < link.started_ns + 8_500_000_000:
            for record in (found := link.shim.poll(20)):
                silent = record["flags"] & Flag.SILENCE and record["time_ns"] > link.started_ns + 1_500_000_000
                if not caps_pkts or (silent and caps_pkts == [90]):
                    caps_pkts.append(10 if silent else 90)
                    cap = np.array(caps_pkts[-1:], np.uint32)
                    keeper.put(np.array([record["cookie"]]), np.array([record["slot"]]), cap, targets_us)
            keeper.see_alive(found)
            keeper.tick(time.monotonic_ns())
        assert caps_pkts == [90, 10]
        return link.stop()

    def check(done: LinkRun) -> None:
        at_ms = done.log.departure_ms
        over_ms = done.log.opportunity_ms[np.diff(done.log.opportunity_ms).argmax() + 1]
        assert (at_ms < over_ms + 100).sum() > 1000, "what the link kept comes first"
        soon = (at_ms > over_ms + 200) & (at_ms < over_ms + 1200)
        assert soon.sum() > 100, "a cap of 10 gives 160 in that second"

    with CappedLink(LinkSpec(trace, cc=cc, mrtt_ms=60.0, buffer_bytes=60_000)) as link:
        figures_hold(through, check)


def test_without_renewal_the_same_outage_lifts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = outage(monkeypatch)
    silent = done.records[(done.records["flags"] & Flag.NO_SAMPLE) != 0]
    assert (silent["cap_pkts"] == 0).any()
    assert "the cap lapsed" in str(done.link.invalid_reason)


def test_a_loop_that_lets_the_cap_lapse_is_no_valid_run() -> None:
    def decide(record: np.ndarray) -> int:
        time.sleep(pauses_s.pop() if pauses_s else 0)
        return CAP_PKTS

    pauses_s = [0.7, 0.0]  # the second answer comes late, when the first one's cap is in force
    with closing(KernelSession(STEADY)) as session:
        done = run(session, 2, decide)
    assert done.link.invalid_reason is not None
    assert "the cap lapsed" in done.link.invalid_reason


def test_what_cannot_be_wrapped_runs_unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reinet.envs.capped_link.wrapper_names", lambda: {"cubic": "reinet_cubic"})

    def unobserved() -> LinkRun:
        link.start()
        while time.monotonic_ns() < link.started_ns + 2_000_000_000:
            assert not len(link.shim.poll(50))
        return link.stop()

    def check(done: LinkRun) -> None:
        assert done.metrics.throughput_mbps > 9

    with CappedLink(LinkSpec(STEADY.trace, cc="reno")) as link:
        figures_hold(unobserved, check)


def test_a_flow_that_dies_is_an_error_not_a_wait() -> None:
    with closing(KernelSession(STEADY)) as session:
        session.start()
        session.next_record()
        cgroup = session._link._link.cgroup
        assert cgroup is not None
        os.kill(int((cgroup / "cgroup.procs").read_text()), signal.SIGKILL)
        with pytest.raises(LinkError, match=r"sender ended|was closed"):  # not that no record came for so long
            drain(session)


def test_without_a_flow_a_step_is_refused_and_waits_for_no_record() -> None:
    env = KernelLinkEnv(STEADY.trace)
    for leave in (KernelLinkEnv.finish, KernelLinkEnv.close):
        env.reset()
        env.step(0.0)
        leave(env)
        for call in (lambda: env.step(0.0), env.finish):
            with pytest.raises(LinkError, match=r"no flow is running: call reset\(\) first"):
                call()
    env.close()


def test_the_environment_passes_the_checker() -> None:
    env = gym.make("reinet/KernelLink-v0", trace=STEADY.trace, disable_env_checker=True)
    assert env.spec is not None
    assert env.spec.nondeterministic
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_the_environment_steps_as_simlink_does() -> None:
    kernel, sim = (
        make(STEADY.trace, head="bdp", episode_periods=60, random_start=True) for make in (KernelLinkEnv, SimLinkEnv)
    )
    try:
        assert kernel.observation_space == sim.observation_space
        assert kernel.action_space == sim.action_space
        _, info = kernel.reset(seed=3)
        _, sim_info = sim.reset(seed=3)
        assert info.keys() == sim_info.keys()
        assert kernel._spec.start_offset_ms > 0
        times_ns, truncated = [info["time_ns"]], False
        while not truncated:
            state, reward, terminated, truncated, info = kernel.step(np.zeros(1, np.float32))
            times_ns.append(info["time_ns"])
            assert kernel.observation_space.contains(state)
            assert not terminated
            assert -100 <= reward <= 100
        assert len(times_ns) == 61
        assert (np.diff(times_ns) > 0).all()
        done = kernel.finish()
        assert done.records.size >= 61
        assert info["cap_pkts"] in done.caps_pkts
        rows = np.zeros(done.records.size)
        products = StateBank(1).update(rows, done.records).rule_pkts
        asked = caps_from_actions("bdp", rows, done.records["cwnd_pkts"], products)
        capped = done.caps_pkts > 0
        # A record that came behind another one in waiting is not answered, and the cap before it stays.
        stayed = np.append(False, np.diff(done.caps_pkts.astype(int)) == 0)
        assert capped[-30:].all()
        assert (asked == done.caps_pkts)[capped & ~stayed].all()
        assert (asked == done.caps_pkts).sum() >= 30, "action 0 of this head is 1.5 x the rule's product"
        kernel.reset()
    finally:
        kernel.close()
        kernel.close()
    with pytest.raises(LinkError, match="reset"):
        kernel.step(0.0)

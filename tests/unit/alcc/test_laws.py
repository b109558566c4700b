"""The deciders in the process decide as those of the daemon do, on the same records."""

import ctypes

import numpy as np
import pytest

from reinet.agents.decide.decider import Decider
from reinet.agents.decide.guard import guard
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import StatsArray
from reinet.alcc.launch import Settings, find_preload
from reinet.core import FLOW_STATS_DTYPE, Flag
from reinet.core.target import Target


class _GuardWithoutMemory:
    """The guard but for its looks for the minimum RTT, which only the daemon does."""

    def check(self, stats: StatsArray, caps_pkts: np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        return guard(stats, caps_pkts)

    def forget(self, _: StatsArray) -> None: ...


def _records(seed: int, count: int = 400) -> StatsArray:
    """A flow whose queue grows, drains and grows again, with silences and restarts."""
    rng = np.random.default_rng(seed)
    records = np.zeros(count, FLOW_STATS_DTYPE)
    period_ns = rng.integers(10, 80, count) * 1_000_000
    records["cookie"] = 7
    records["period_ns"] = period_ns
    records["time_ns"] = 10**12 + np.cumsum(period_ns)
    records["min_rtt_us"] = rng.choice([20_000, 45_000, 300])
    queue_us = np.abs(np.cumsum(rng.normal(0, 6000, count))).astype(np.int64)
    records["rtt_least_us"] = records["min_rtt_us"] + queue_us
    records["rtt_mean_us"] = records["rtt_least_us"] + 2000
    records["srtt_us"] = records["rtt_mean_us"]
    records["rtt_samples"] = rng.integers(0, 30, count)
    records["delivered_bytes"] = rng.integers(0, 120_000, count)
    records["delivery_rate_bytes_per_s"] = records["delivered_bytes"] * 10**9 // period_ns.astype(np.uint64)
    records["mss_bytes"] = 1448
    records["cwnd_pkts"] = rng.integers(2, 300, count)
    records["inflight_pkts"] = records["cwnd_pkts"]
    flags = (rng.random(count) < 0.05) * int(Flag.APP_LIMITED) + (rng.random(count) < 0.02) * int(Flag.RESTARTED)
    records["flags"] = flags | np.where(records["rtt_samples"] == 0, int(Flag.NO_SAMPLE), 0)
    return records


def _in_process(settings: Settings, records: StatsArray) -> tuple[np.ndarray, np.ndarray]:
    targets_us, caps_pkts = np.zeros(len(records), np.uint32), np.zeros(len(records), np.uint32)
    replay = ctypes.CDLL(str(find_preload())).reinet_alcc_replay
    failed = replay(
        settings.text().encode(), records.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(records)),
        targets_us.ctypes.data_as(ctypes.c_void_p), caps_pkts.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    assert failed == 0
    return targets_us, caps_pkts


@pytest.mark.parametrize("law", ["fixed:25", "rule:1.5", "rule:0.9", "none"])
@pytest.mark.parametrize("target", ["+30ms", "50ms", "2.5x", "1.1x", "+1ms"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_same_caps_as_in_the_daemon(law: str, target: str, seed: int) -> None:
    records = _records(seed)
    records["min_rtt_us"][:3] = 0  # unknown at first
    targets_us, caps_pkts = _in_process(Settings(law=law, target=Target.parse(target)), records)
    records["target_us"] = Target.parse(target).resolve_us(records["min_rtt_us"])
    np.testing.assert_array_equal(targets_us, records["target_us"])

    agent = make_agent(law)
    bank = agent.view.bank(1)
    decider = Decider(agent, 1, _GuardWithoutMemory())  # type: ignore[arg-type]
    expected = []
    for i in range(len(records)):
        batch = bank.update([0], records[i : i + 1])
        decider.decide(records[i : i + 1], batch.states, batch.rule_pkts, batch.decided, batch.may_cap)
        expected.append(int(decider.caps_pkts[0]))
    np.testing.assert_array_equal(caps_pkts, expected)
    if law != "none" and target == "+30ms" and records["min_rtt_us"][10] > 1000:
        assert 0 < np.count_nonzero(caps_pkts) < len(records), "both answers were to be seen"


def test_settings_that_make_no_sense_are_refused() -> None:
    replay = ctypes.CDLL(str(find_preload())).reinet_alcc_replay
    for text in ("law=fixed:2", "law=fixed:99999", "law=rule", "law=nothing", "target=1", "ports=0", "what=1", "law"):
        assert replay(text.encode(), None, ctypes.c_size_t(0), None, None) == -1, text

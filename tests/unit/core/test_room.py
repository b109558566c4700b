"""The room for queueing that a network is told of on a long path."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from helpers.links import constant
from helpers.models import edit_manifest, write_model
from reinet.agents.decide.policy import Policy
from reinet.core import FLOW_STATS_DTYPE, StateBank
from reinet.core.errors import ModelError
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch

SET = "timescales-24x1"
ROOM = 21
"""The place of the feature room, log((target - min RTT) / min RTT)."""


def records(min_rtt_ms: float, target_ms: float, count: int = 40) -> npt.NDArray[np.void]:
    """One flow's records each 50 ms, with a queue that grows."""
    s = np.zeros(count, FLOW_STATS_DTYPE)
    s["period_ns"] = 50_000_000
    s["time_ns"] = 10**12 + np.cumsum(s["period_ns"])
    s["min_rtt_us"], s["target_us"] = min_rtt_ms * 1000, target_ms * 1000
    s["rtt_least_us"] = s["rtt_mean_us"] = s["rtt_last_us"] = s["srtt_us"] = 1000 * min_rtt_ms + 500 * np.arange(
        1, count + 1
    )
    s["rtt_samples"], s["mss_bytes"], s["delivered_bytes"], s["inflight_pkts"] = 5, 1448, 150_000, 60
    s["delivery_rate_bytes_per_s"] = 3_000_000
    return s


def states(stats: npt.NDArray[np.void], room_beyond_ms: float | None) -> npt.NDArray[np.float32]:
    return StateBank(1, SET, room_beyond_ms=room_beyond_ms).update(np.zeros(len(stats)), stats).states


@pytest.mark.parametrize(("min_rtt_ms", "target_ms", "told_ms"), [(100, 130, 180), (60, 66, 100), (20.5, 20.8, 21)])
def test_features_see_as_much_room_as_the_path_is_longer_than_it_is_said(
    min_rtt_ms: float, target_ms: float, told_ms: float
) -> None:
    seen = states(records(min_rtt_ms, target_ms), 20.0)
    np.testing.assert_array_equal(seen, states(records(min_rtt_ms, told_ms), None))
    assert seen[-1, ROOM] > states(records(min_rtt_ms, target_ms), None)[-1, ROOM]


@pytest.mark.parametrize(("min_rtt_ms", "target_ms"), [(20, 25), (4, 30), (100, 180), (60, 200)])
def test_a_target_that_leaves_as_much_is_seen_as_it_is(min_rtt_ms: float, target_ms: float) -> None:
    stats = records(min_rtt_ms, target_ms)
    np.testing.assert_array_equal(states(stats, 20.0), states(stats, None))


def test_reward_and_gate_see_the_target_that_was_asked_for() -> None:
    stats = records(100, 130)
    told, asked = (
        StateBank(1, SET, room_beyond_ms=beyond).update(np.zeros(len(stats)), stats) for beyond in (20.0, None)
    )
    np.testing.assert_array_equal(told.rewards, asked.rewards)
    np.testing.assert_array_equal(told.may_cap, asked.may_cap)
    np.testing.assert_array_equal(told.rule_pkts, asked.rule_pkts)
    assert not np.array_equal(told.states, asked.states)


def test_the_simulator_tells_what_a_daemon_tells() -> None:
    link = LinkSpec(constant(12), mrtt_ms=100, target_us=130_000)
    sim = SimBatch([link], feature_set=SET, room_beyond_ms=20.0)
    bank = StateBank(1, SET, room_beyond_ms=20.0)
    sim.reset()
    for _ in range(50):
        np.testing.assert_array_equal(sim.states, bank.update([0], sim.stats).states)
        sim.step_caps(np.zeros(1, np.uint32))
    assert sim.states[0, ROOM] == pytest.approx(np.log(80 / 100), abs=0.05)


def test_a_models_manifest_says_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    assert Policy.load(folder).view.room_beyond_ms is None
    edit_manifest(folder, lambda data: data.update(room_beyond_ms=20))
    assert Policy.load(folder).view.room_beyond_ms == 20.0
    for wrong in (0, -1, "far"):
        edit_manifest(folder, lambda data, wrong=wrong: data.update(room_beyond_ms=wrong))
        with pytest.raises(ModelError, match="room_beyond_ms"):
            Policy.load(folder)

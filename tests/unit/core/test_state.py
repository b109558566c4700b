"""States, rewards, heads and the normaliser against a plain NumPy reading of DeepCC's equations."""

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reinet.agents.decide.baselines import Rule
from reinet.core import (
    FEATURE_SETS,
    FLOW_STATS_DTYPE,
    MAX_CAP_PKTS,
    MIN_CAP_PKTS,
    ConfigError,
    Flag,
    ModelError,
    Normaliser,
    StateBank,
    actions_from_caps,
    caps_from_actions,
    round_caps,
    schema_hash,
)

Stats = npt.NDArray[np.void]


def make_stats(count: int, seed: int, silent: float = 0.1) -> Stats:
    """Records of one flow, some without a sample, delays around and above the target."""
    rng = np.random.default_rng(seed)
    s = np.zeros(count, FLOW_STATS_DTYPE)
    s["min_rtt_us"] = rng.integers(4_000, 30_000)
    s["rtt_mean_us"] = s["min_rtt_us"] + rng.integers(0, 80_000, count)
    s["rtt_samples"] = rng.integers(1, 60, count)
    s["delivery_rate_bytes_per_s"] = rng.integers(0, 3_000_000, count)
    s["cwnd_pkts"] = rng.integers(1, 200, count)
    s["mss_bytes"] = 1448
    s["target_us"] = 50_000
    s["flags"][rng.random(count) < silent] = Flag.NO_SAMPLE
    return s


def trained(seed: int = 0) -> Normaliser:
    normaliser = Normaliser()
    normaliser.observe(make_stats(500, seed))
    return normaliser


class Oracle:
    """One flow, straight from the equations; nothing shared with the C++ core."""

    def __init__(self, normaliser: Normaliser) -> None:
        self.statistics = normaliser.to_dict()
        self.observations: list[list[float]] = []
        self.rho: list[tuple[float, float]] = []
        self.rates: list[float] = []

    def normalised(self, name: str, x: float) -> float:
        s = self.statistics[name]
        sd = math.sqrt(s["m2"] / s["count"])
        z, z_min = (x - s["mean"]) / sd, (s["minimum"] - s["mean"]) / sd
        return z - z_min

    def update(self, r: Any) -> tuple[npt.NDArray[np.float64], float, float]:
        d_ms = (int(r["rtt_mean_us"]) - int(r["min_rtt_us"])) / 1e3 + 21
        t_ms = (int(r["target_us"]) - int(r["min_rtt_us"])) / 1e3 + 21
        d, t = self.normalised("delay_ms", d_ms), self.normalised("delay_ms", t_ms)
        n, thr, cwnd = (
            np.clip(self.normalised(name, float(r[field])), 0, 100)
            for name, field in (
                ("samples", "rtt_samples"),
                ("rate_bytes_per_s", "delivery_rate_bytes_per_s"),
                ("cwnd_pkts", "cwnd_pkts"),
            )
        )
        rho = float(np.clip(d / t if t > 0 else d, 0, 100))
        self.rho = [*self.rho[-1:], (rho, float(r["rtt_samples"]))]
        rho_bar = sum(x * w for x, w in self.rho) / sum(w for _, w in self.rho)
        k = 1 if rho_bar <= 1 else 0
        self.observations.insert(0, [rho * (1 - k), (1 - rho) * k, k * n, k * thr, cwnd])
        state = np.zeros((20, 5))
        latest = self.observations[:20]
        state[: len(latest)] = latest
        reward = min(n * thr * rho, 100) * (1 if k else -1)
        self.rates.append(float(r["delivery_rate_bytes_per_s"]))
        rule = max(self.rates[-10:]) * float(r["min_rtt_us"]) / 1e6 / float(r["mss_bytes"])
        return state.ravel(), reward, rule


@pytest.mark.parametrize("seed", range(5))
def test_states_rewards_and_rule_follow_the_equations(seed: int) -> None:
    stats, normaliser = make_stats(200, seed), trained()
    bank, oracle = StateBank(3, normaliser=normaliser), Oracle(normaliser)
    both_signs = set()
    for i in range(len(stats)):
        batch = bank.update([1], stats[i : i + 1])
        if stats["flags"][i] & Flag.NO_SAMPLE:
            assert not batch.decided[0]
            assert batch.rewards[0] == 0
            continue
        state, reward, rule = oracle.update(stats[i])
        assert batch.decided[0]
        np.testing.assert_allclose(batch.states[0], state, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.rewards[0], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.rule_pkts[0], rule, rtol=1e-5)
        both_signs.add(np.sign(reward))
    assert both_signs >= {-1.0, 1.0}


def test_a_target_out_of_reach_takes_the_delay_itself() -> None:
    normaliser = trained()
    stats = make_stats(1, 0, silent=0)
    stats["target_us"] = 0
    expected = Oracle(normaliser).update(stats[0])[0]
    assert expected[0] > 0
    np.testing.assert_allclose(StateBank(1, normaliser=normaliser).update([0], stats).states[0], expected, rtol=1e-5)


def test_a_silence_changes_nothing() -> None:
    bank = StateBank(1, normaliser=trained())
    before = bank.update([0], make_stats(1, 0, silent=0))
    silent = make_stats(1, 1, silent=1)
    after = bank.update([0], silent)
    assert np.array_equal(after.states, before.states)
    assert after.rule_pkts[0] == before.rule_pkts[0] > 0
    assert after.rewards[0] == 0
    assert not after.decided[0]


def test_batches_and_single_updates_agree_and_rows_are_apart() -> None:
    stats, normaliser = make_stats(30, 3), trained()
    together, apart = StateBank(3, normaliser=normaliser), StateBank(3, normaliser=normaliser)
    rows = np.arange(30) % 3
    batch = together.update(rows, stats)
    for i, row in enumerate(rows):
        one = apart.update([row], stats[i : i + 1])
        assert np.array_equal(one.states[0], batch.states[i])
        assert one.rewards[0] == batch.rewards[i]


def test_reset_forgets_one_row_only_and_grow_keeps_all() -> None:
    stats, bank = make_stats(1, 0, silent=0), StateBank(2, normaliser=trained())
    fresh = bank.update([0, 1], np.repeat(stats, 2)).states
    second = bank.update([0, 1], np.repeat(stats, 2)).states
    assert not np.array_equal(fresh, second)
    bank.reset([0])
    bank.grow(5)
    again = bank.update([0, 1], np.repeat(stats, 2)).states
    assert np.array_equal(again[0], fresh[0])
    assert not np.array_equal(again[1], fresh[1])
    assert bank.capacity == 5


def test_a_bad_row_is_refused_before_anything_changes() -> None:
    stats, bank = make_stats(2, 0, silent=0), StateBank(1, normaliser=trained())
    with pytest.raises(IndexError, match="row 1 is outside a state bank of 1 rows"):
        bank.update([0, 1], stats)
    assert np.count_nonzero(bank.update([0], stats[:1]).states[0]) <= 5
    with pytest.raises(TypeError, match="expected"):
        bank.update([0], np.zeros(1, np.dtype([("x", "<u8")])))
    with pytest.raises(ValueError, match="differ in length"):
        bank.update([0], stats)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_every_state_lies_within_its_bounds(word: int, rate: int, cwnd: int, n: int) -> None:
    stats = make_stats(1, word, silent=0)
    stats["rtt_mean_us"], stats["delivery_rate_bytes_per_s"] = word, rate
    stats["cwnd_pkts"], stats["rtt_samples"] = cwnd, n
    chosen = FEATURE_SETS["deepcc-5x20"]
    batch = StateBank(1).update([0], stats)
    assert np.all(batch.states[0] >= chosen.low())
    assert np.all(batch.states[0] <= chosen.high())
    assert -100 <= batch.rewards[0] <= 100


def test_caps_follow_the_heads() -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, 1000).astype(np.float32)
    cwnd = rng.integers(0, 60_000, 1000).astype(np.uint32)
    rule = rng.uniform(0.01, 30_000, 1000).astype(np.float32)
    two_to_a = np.exp2(a.astype(np.float64))
    by_cwnd = np.clip(np.rint(two_to_a * cwnd), 4, 40_000)
    by_rule = np.clip(np.rint(1.5 * two_to_a * rule), 4, 300)
    assert np.array_equal(caps_from_actions("cwnd", a, cwnd, rule), by_cwnd)
    assert np.array_equal(caps_from_actions("bdp", a, cwnd, rule, ceiling_pkts=300), by_rule)
    by_wide = np.clip(np.rint(1.3 * two_to_a**2 * rule), 4, 40_000)
    assert np.array_equal(caps_from_actions("wide", a, cwnd, rule), by_wide)


def test_no_cap_without_a_number_or_a_rule() -> None:
    bad = np.array([np.nan, np.inf, -np.inf, 0], np.float32)
    assert caps_from_actions("cwnd", bad, [10] * 4, [0] * 4).tolist() == [0, 0, 0, 10]
    assert caps_from_actions("bdp", [0, 0], [10, 10], [0, 10]).tolist() == [0, 15]
    assert caps_from_actions("wide", [0, 0, -1, 1], [10] * 4, [0, 100, 100, 100]).tolist() == [0, 130, 32, 520]
    assert caps_from_actions("cwnd", [7.0, -7.0], [10, 10], [0, 0]).tolist() == [20, 5]
    with pytest.raises(ConfigError, match="cwnd, bdp"):
        caps_from_actions("window", [0], [1], [1])


@pytest.mark.parametrize("head", ["cwnd", "bdp", "wide"])
def test_an_action_from_a_cap_gives_that_cap_again_within_the_heads_limits(head: str) -> None:
    rng = np.random.default_rng(5)
    cwnd, rule = rng.integers(8, 60_000, 5000), rng.uniform(8, 60_000, 5000).astype(np.float32)
    caps = caps_from_actions(head, rng.uniform(-1, 1, 5000), cwnd, rule)
    assert len(np.unique(caps)) > 1000
    assert np.array_equal(caps_from_actions(head, actions_from_caps(head, caps, cwnd, rule), cwnd, rule), caps)


def test_an_action_from_a_cap_out_of_reach_is_the_heads_limit_and_from_none_the_highest() -> None:
    for head, least, most in (("cwnd", 50, 200), ("bdp", 75, 300), ("wide", 33, 520)):
        actions = actions_from_caps(head, [4, least, most, 9000, 0], [100] * 5, [100] * 5)
        assert actions[[0, 3, 4]].tolist() == [-1, 1, 1]
        assert actions[[1, 2]] == pytest.approx([-1, 1], abs=0.02)
    assert actions_from_caps("bdp", [50], [100], [0]).tolist() == [1]  # the rule is unknown
    with pytest.raises(ConfigError, match="cwnd, bdp"):
        actions_from_caps("window", [1], [1], [1])


def test_head_and_rule_round_alike_within_the_same_limits() -> None:
    """Halves included: the hand rule is the bdp head's action 0, bit for bit."""
    rule_pkts = np.concatenate([np.arange(0, 40_000, 1 / 3), [np.inf]]).astype(np.float32)  # 1.5 x n/3 has halves
    stats = np.zeros(len(rule_pkts), FLOW_STATS_DTYPE)
    by_rule = Rule().decide(stats, np.zeros((len(rule_pkts), 0), np.float32), rule_pkts)[:-1]
    by_head = caps_from_actions("bdp", np.zeros(len(rule_pkts)), stats["cwnd_pkts"], rule_pkts)[:-1]
    assert np.array_equal(by_rule, by_head)
    assert (by_rule[1], by_rule[-1], by_rule[0]) == (MIN_CAP_PKTS, MAX_CAP_PKTS, 0)
    halves = np.arange(5, 100) + 0.5
    assert np.array_equal(round_caps(halves), 2 * np.round(halves / 2 + 0.01))
    assert np.array_equal(
        caps_from_actions("cwnd", [-1.0] * 20, np.arange(8, 28), [0] * 20), round_caps(np.arange(8, 28) / 2)
    )
    assert round_caps([np.nan, -np.inf, np.inf, 7.2]).tolist() == [0, MIN_CAP_PKTS, MAX_CAP_PKTS, 7]


# ---- the normaliser


def inputs_of(stats: Stats) -> npt.NDArray[np.float64]:
    heard = stats[(stats["flags"] & Flag.NO_SAMPLE) == 0]
    delay = heard["rtt_mean_us"] / 1e3 - heard["min_rtt_us"] / 1e3 + 21
    return np.stack([delay, heard["rtt_samples"], heard["delivery_rate_bytes_per_s"], heard["cwnd_pkts"]])


def test_statistics_are_those_of_what_was_observed() -> None:
    stats, normaliser = make_stats(400, 1), Normaliser()
    normaliser.observe(stats[:150])
    normaliser.observe(stats[150:])
    x = inputs_of(stats)
    expected = np.stack([[x.shape[1]] * 4, x.mean(1), x.var(1) * x.shape[1], x.min(1)], axis=1)
    np.testing.assert_allclose(normaliser.table, expected, rtol=1e-10)


def test_merging_is_like_observing_all() -> None:
    stats, whole, left, right = make_stats(300, 2), Normaliser(), Normaliser(), Normaliser()
    whole.observe(stats)
    left.observe(stats[:100])
    right.observe(stats[100:])
    left.merge(right)
    left.merge(Normaliser())
    np.testing.assert_allclose(left.table, whole.table, rtol=1e-10)
    empty = Normaliser()
    empty.merge(whole)
    assert empty == whole


def test_without_a_spread_an_input_says_nothing() -> None:
    once = Normaliser()
    once.observe(make_stats(1, 0, silent=0))
    for normaliser in (Normaliser(), once):
        state = StateBank(1, normaliser=normaliser).update([0], make_stats(1, 5, silent=0)).states
        assert state[0, :5].tolist() == [0, 1, 0, 0, 0]


def test_states_use_a_copy_of_the_statistics() -> None:
    normaliser = trained()
    bank = StateBank(1, normaliser=normaliser)
    before = bank.update([0], make_stats(1, 7, silent=0)).states
    bank.reset([0])
    table = normaliser.table.copy()
    normaliser.observe(make_stats(100, 8))
    assert np.array_equal(bank.update([0], make_stats(1, 7, silent=0)).states, before)
    bank = StateBank(1, normaliser=normaliser)
    assert not np.array_equal(bank.update([0], make_stats(1, 7, silent=0)).states, before)
    assert not np.array_equal(normaliser.table, table)


def test_a_normaliser_survives_json() -> None:
    normaliser = trained()
    assert Normaliser.from_dict(json.loads(json.dumps(normaliser.to_dict()))) == normaliser
    assert normaliser != Normaliser()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", float("nan")),
        ("count", 10**400),
        ("mean", float("inf")),
        ("m2", -1.0),
        ("count", -1),
        ("minimum", 1e9),
        ("mean", "5"),
    ],
)
def test_impossible_statistics_are_refused(key: str, value: object) -> None:
    values: dict[str, Any] = Normaliser.reference().to_dict()
    values["delay_ms"] = {**values["delay_ms"], key: value}
    with pytest.raises(ModelError, match="delay_ms"):
        Normaliser.from_dict(values)


def test_another_layout_is_refused() -> None:
    values: dict[str, Any] = Normaliser.reference().to_dict()
    with pytest.raises(ModelError, match="inputs must be"):
        Normaliser.from_dict({k: v for k, v in values.items() if k != "samples"})
    with pytest.raises(ModelError, match=r"samples: the statistics must be"):
        Normaliser.from_dict({**values, "samples": {"count": 1}})
    with pytest.raises(ModelError):
        Normaliser.from_dict([])  # type: ignore[arg-type]


def test_the_schema_hash_tells_heads_apart_and_stays_what_models_were_saved_with() -> None:
    assert schema_hash("deepcc-5x20", "cwnd") != schema_hash("deepcc-5x20", "bdp")
    # A change here invalidates every saved model, so it must be meant.
    assert schema_hash("deepcc-5x20", "bdp") == "904adb2821c711f39869901410781f6a8b04784398d4c2870c20ad3d4598ebcb"
    with pytest.raises(ConfigError, match="deepcc-5x20"):
        schema_hash("other", "bdp")

"""Feature sets: one table for C++, Python, documentation and hash; the scale-free set against plain NumPy."""

import dataclasses
import re
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reinet.core import (
    DEFAULT_FEATURE_SET,
    FEATURE_SETS,
    FLOW_STATS_DTYPE,
    ConfigError,
    Flag,
    ModelError,
    Normaliser,
    StateBank,
    features,
)
from reinet.core.features import schema_hash
from reinet.envs.kernel_link import KernelLinkEnv
from reinet.envs.sim_link import SimLinkEnv

Stats = npt.NDArray[np.void]
SCALE_FREE = "scalefree-5x20"


def records(count: int, seed: int, period_ms: tuple[int, int]) -> Stats:
    """One flow's records end to end, some without a sample."""
    rng = np.random.default_rng(seed)
    s = np.zeros(count, FLOW_STATS_DTYPE)
    s["period_ns"] = rng.integers(period_ms[0], period_ms[1] + 1, count) * 1_000_000
    s["time_ns"] = 10**12 + np.cumsum(s["period_ns"])
    s["delivered_bytes"] = rng.integers(0, 200, count) * 1448 * period_ms[1]
    s["min_rtt_us"] = rng.integers(4_000, 30_000)
    s["rtt_mean_us"] = s["min_rtt_us"] + rng.integers(0, 80_000, count)
    s["rtt_samples"] = rng.integers(1, 60, count)
    s["inflight_pkts"] = rng.integers(0, 200, count)
    s["mss_bytes"] = 1448
    s["target_us"] = 50_000
    s["flags"][rng.random(count) < 0.1] = Flag.NO_SAMPLE
    return s


class ScaleFree:
    """One flow of the scale-free set, straight from its terms."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, int]] = []  # end, period, bytes
        self.rates: list[float] = []

    def update(self, r: Any) -> tuple[list[float], float]:
        time_ns, period_ns, min_rtt_us = int(r["time_ns"]), int(r["period_ns"]), float(r["min_rtt_us"])
        self.heard.append((time_ns, period_ns, int(r["delivered_bytes"])))
        lasting_ns = delivered = 0
        for _, period, size in reversed(self.heard):
            lasting_ns, delivered = lasting_ns + period, delivered + size
            if lasting_ns >= 20_000_000:
                break
        rate = delivered / lasting_ns * 1e9
        self.rates.append(rate)
        since_ns = time_ns - period_ns - 240_000_000
        peak = max(rate for (end_ns, *_), rate in zip(self.heard, self.rates, strict=True) if end_ns >= since_ns)
        rule = peak * min_rtt_us / 1e6 / 1448
        rho = (float(r["rtt_mean_us"]) - min_rtt_us) / max(float(r["target_us"]) - min_rtt_us, 0.1 * min_rtt_us)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = [
                np.log1p(4 * rho) / np.log(5),
                rate / peak if peak else 0.0,
                np.log(float(r["inflight_pkts"]) / np.float64(rule)),
                np.log(period_ns / 1e3 / min_rtt_us),
                np.log(np.float64(rule)),
            ]
        bounded = np.clip(values, [0, 0, -4, -4, -4], [4, 1, 4, 4, 11])
        return np.where(np.isnan(bounded), -4, bounded).tolist(), rule


@pytest.mark.parametrize("period_ms", [(1, 1), (5, 5), (2, 30), (20, 90), (300, 3000)])
def test_scale_free_observations_follow_their_terms(period_ms: tuple[int, int]) -> None:
    """From a record every millisecond to one every few seconds, all windows in time."""
    bank, oracle = StateBank(2, SCALE_FREE), ScaleFree()
    expected: list[list[float]] = []
    for record in records(600, 1, period_ms).reshape(-1, 1):
        batch = bank.update([1], record)
        if record["flags"][0] & Flag.NO_SAMPLE:
            assert not batch.decided[0]
            continue
        values, rule = oracle.update(record[0])
        expected.insert(0, values)
        state = np.zeros((20, 5))
        state[: len(expected[:20])] = expected[:20]
        np.testing.assert_allclose(batch.states[0], state.ravel(), rtol=1e-5, atol=1e-5)
        assert batch.rule_pkts[0] == pytest.approx(rule, rel=1e-6)


def test_an_outage_does_not_wipe_out_what_the_link_could_do() -> None:
    """The record that spans an outage still sees the rate before it."""
    s = records(3, 0, (40, 40))
    s["flags"] = 0
    s["delivered_bytes"] = 40 * 1448
    s["period_ns"][1] = 3_000_000_000
    s["time_ns"] = 10**12 + np.cumsum(s["period_ns"])
    bank = StateBank(1, SCALE_FREE)
    rules = [float(bank.update([0], s[i : i + 1]).rule_pkts[0]) for i in range(3)]
    assert rules == pytest.approx([rules[0]] * 3)
    assert bank.update([0], s[1:2]).states[0, 1] < 0.02


@pytest.mark.parametrize("name", FEATURE_SETS)
@settings(max_examples=30)
@given(st.data())
def test_every_state_lies_within_the_sets_bounds(name: str, data: st.DataObject) -> None:
    chosen, bank = FEATURE_SETS[name], StateBank(1, name)
    for _ in range(3):
        s = np.zeros(1, FLOW_STATS_DTYPE)
        for field in FLOW_STATS_DTYPE.names or ():
            bits = FLOW_STATS_DTYPE[field].itemsize * 8
            s[field] = data.draw(st.one_of(st.sampled_from([0, 1, 2**bits - 1]), st.integers(0, 2**bits - 1)), field)
        s["flags"], s["rtt_samples"] = 0, max(1, int(s["rtt_samples"][0]))
        batch = bank.update([0], s)
        assert np.all(batch.states[0] >= chosen.low())
        assert np.all(batch.states[0] <= chosen.high())
        assert batch.rule_pkts[0] >= 0


TIMESCALES = "timescales-24x1"


def steady(period_ms: int, count: int, **fields: int) -> Stats:
    """A flow at 1500 bytes/ms with a queue that stands."""
    s = np.zeros(count, FLOW_STATS_DTYPE)
    s["period_ns"] = period_ms * 1_000_000
    s["time_ns"] = 10**12 + np.cumsum(s["period_ns"])
    s["delivered_bytes"], s["delivery_rate_bytes_per_s"], s["rtt_samples"] = 1500 * period_ms, 1_500_000, period_ms
    s["min_rtt_us"], s["srtt_us"], s["target_us"], s["mss_bytes"], s["inflight_pkts"] = 20_000, 40_000, 50_000, 1448, 40
    s["rtt_mean_us"] = s["rtt_last_us"] = s["rtt_least_us"] = 40_000
    for name, value in fields.items():
        s[name] = value
    return s


def test_windows_in_time_mean_the_same_at_any_cadence() -> None:
    names = [f.name for f in FEATURE_SETS[TIMESCALES].features]
    seen = {}
    for period_ms in (5, 10):
        s = steady(period_ms, 1000 // period_ms)
        late = s["time_ns"] > s["time_ns"][-1] - 100_000_000  # the queue has grown for 100 ms
        s["rtt_mean_us"][late], s["rtt_last_us"][late], s["inflight_pkts"][late] = 45_000, 45_000, 60
        s["delivered_bytes"][late] //= 2
        batch = StateBank(1, TIMESCALES).update(np.zeros(len(s), np.int32), s)
        seen[period_ms] = dict(zip(names, batch.states[-1].tolist(), strict=True)) | {"rule": batch.rule_pkts[-1]}
    for name in names:
        if name != "period":
            assert seen[5][name] == pytest.approx(seen[10][name], abs=1e-5), name
    values = seen[5]
    assert values["rate_20"] == pytest.approx(0.5)
    assert values["rate_160"] == pytest.approx((100 * 0.5 + 60) / 160)
    assert values["delay_80"] == pytest.approx(np.log1p(4 * 25 / 30) / np.log(5), rel=1e-5)
    rtt_320_ms = (100 * 45 + 220 * 40) / 320
    assert values["delay_320"] == pytest.approx(np.log1p(4 * (rtt_320_ms - 20) / 30) / np.log(5), rel=1e-5)
    assert values["rule"] == pytest.approx(1500 * 20 / 1448, rel=1e-5)


@pytest.mark.parametrize("name", [SCALE_FREE, TIMESCALES])
def test_what_the_application_limits_raises_the_peak_and_never_lowers_it(name: str) -> None:
    s = steady(5, 1300)
    s["delivered_bytes"][100:1200] //= 3
    s["flags"][100:1200] = Flag.APP_LIMITED
    s["delivered_bytes"][1100:1200] *= 9  # faster than ever, though limited
    rules = StateBank(1, name).update(np.zeros(len(s), np.int32), s).rule_pkts
    assert rules[99:1100] == pytest.approx(rules[99])
    assert rules[1199] == pytest.approx(3 * rules[99])
    s["flags"] = 0
    rules = StateBank(1, name).update(np.zeros(len(s), np.int32), s).rule_pkts
    assert rules[1000] == pytest.approx(rules[99] / 3)  # the link itself has become slower


def test_sets_are_told_apart_by_name() -> None:
    assert list(FEATURE_SETS)[:2] == [DEFAULT_FEATURE_SET, SCALE_FREE]
    for number, (name, chosen) in enumerate(FEATURE_SETS.items()):
        assert (chosen.name, chosen.number, len(chosen.features) * chosen.history) == (name, number, chosen.state_size)
        assert len({f.name for f in chosen.features}) == len(chosen.features)
        assert name.endswith(f"-{len(chosen.features)}x{chosen.history}")
    for wrong in (lambda: StateBank(1, "none"), lambda: Normaliser("none")):
        with pytest.raises(ConfigError, match=f"choose one of {', '.join(FEATURE_SETS)}"):
            wrong()


@pytest.mark.parametrize("env", [SimLinkEnv, KernelLinkEnv])
def test_the_documentation_has_every_set_word_by_word(env: type) -> None:
    words = " ".join((env.__doc__ or "").split())
    assert "FEATURE_TABLES" not in words
    for chosen in FEATURE_SETS.values():
        said = f"``{chosen.name}``, {chosen.history} observations of {len(chosen.features)} values: {chosen.terms}."
        assert said in words
        assert f"``rule_pkts``: {chosen.rule}." in words
        rows = [re.split(" {2,}", line.strip()) for line in (env.__doc__ or "").splitlines()]
        for i, f in enumerate(chosen.features):
            assert [str(i), f.name, f.formula, f.unit, f"{f.low:g}, {f.high:g}"] in rows


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"terms": "other"}, {"rule": "other"}, {"history": 19}, {"inputs": ()}, {"features": ()}],
)
def test_the_hash_covers_the_whole_table(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name = "deepcc-5x20"
    before = schema_hash(name, "bdp")
    other = dataclasses.replace(FEATURE_SETS[name], **change)
    monkeypatch.setattr(features, "FEATURE_SETS", MappingProxyType({name: other}))
    assert schema_hash(name, "bdp") != before


def test_the_hash_covers_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = FEATURE_SETS[SCALE_FREE]
    before = schema_hash(SCALE_FREE, "bdp")
    changed = (dataclasses.replace(chosen.features[0], formula="rho"), *chosen.features[1:])
    other = dataclasses.replace(chosen, features=changed)
    monkeypatch.setattr(features, "FEATURE_SETS", MappingProxyType({SCALE_FREE: other}))
    assert schema_hash(SCALE_FREE, "bdp") != before


def test_a_set_without_inputs_has_an_empty_normaliser() -> None:
    normaliser = Normaliser.reference(SCALE_FREE)
    assert normaliser.table.shape == (0, 4)
    normaliser.observe(records(10, 0, (5, 5)))
    normaliser.merge(Normaliser(SCALE_FREE))
    assert normaliser.to_dict() == {}
    assert Normaliser.from_dict({}, SCALE_FREE) == normaliser
    assert normaliser != Normaliser()
    with pytest.raises(ModelError, match="inputs must be none"):
        Normaliser.from_dict(Normaliser.reference().to_dict(), SCALE_FREE)


def test_another_sets_normaliser_is_refused() -> None:
    with pytest.raises(ConfigError, match="belongs to the feature set deepcc-5x20, not to scalefree-5x20"):
        StateBank(1, SCALE_FREE, Normaliser())
    with pytest.raises(ConfigError, match="normaliser"):
        SimLinkEnv(feature_set=SCALE_FREE, normaliser=Normaliser())
    with pytest.raises(ConfigError, match="normaliser"):
        Normaliser().merge(Normaliser(SCALE_FREE))

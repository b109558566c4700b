"""Targets: their texts, their limits, and what they make of a path's minimum RTT."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinet.core.errors import ConfigError
from reinet.core.guard import Guard
from reinet.core.records import FLOW_STATS_DTYPE
from reinet.core.target import LEAST_TARGET_PER_RTT, MOST_MIN_RTTS, MOST_MS, UNKNOWN_RTT_US, Form, Target

MILLISECONDS = st.floats(0.0, MOST_MS, exclude_min=True)
TARGETS = st.one_of(
    st.builds(Target, st.sampled_from([Form.ABSOLUTE, Form.ABOVE]), MILLISECONDS),
    st.builds(Target, st.just(Form.MULTIPLE), st.floats(LEAST_TARGET_PER_RTT, MOST_MIN_RTTS)),
)
KNOWN_US = st.integers(1, UNKNOWN_RTT_US - 1)


def resolved_us(target: Target, *min_rtts_us: int) -> list[int]:
    found = target.resolve_us(np.array(min_rtts_us, np.uint32))
    assert found.dtype == np.uint32
    return found.tolist()


@pytest.mark.parametrize(
    ("text", "canonical", "at_4_20_200_ms"),
    [
        ("50ms", "50ms", [50, 50, 50]),
        ("50", "50ms", [50, 50, 50]),
        (50, "50ms", [50, 50, 50]),
        (50.0, "50ms", [50, 50, 50]),
        (" 62.50 ms ", "62.5ms", [62.5, 62.5, 62.5]),
        ("+30ms", "+30ms", [34, 50, 230]),
        ("+30", "+30ms", [34, 50, 230]),
        ("2.5x", "2.5x", [10, 50, 500]),
        ("3 x", "3x", [12, 60, 600]),
        (".5ms", "0.5ms", [0.5, 0.5, 0.5]),
    ],
)
def test_a_text_names_a_target(text: str | float, canonical: str, at_4_20_200_ms: list[float]) -> None:
    target = Target.parse(text)
    assert str(target) == canonical
    assert resolved_us(target, 4_000, 20_000, 200_000) == [round(1000 * ms) for ms in at_4_20_200_ms]
    assert [target.resolve_ms(ms) for ms in (4.0, 20.0, 200.0)] == at_4_20_200_ms


@given(TARGETS)
def test_the_canonical_text_names_an_equal_target(target: Target) -> None:
    assert Target.parse(str(target)) == target
    assert str(Target.parse(str(target))) == str(target)


@given(TARGETS, KNOWN_US, KNOWN_US)
def test_a_longer_path_never_has_a_lower_target(target: Target, one_us: int, other_us: int) -> None:
    at_short, at_long = resolved_us(target, *sorted((one_us, other_us)))
    assert 0 < at_short <= at_long


@given(st.sampled_from(list(Form)), st.floats(LEAST_TARGET_PER_RTT, MOST_MIN_RTTS), st.floats(0.0, 1.0), KNOWN_US)
def test_a_larger_amount_never_makes_a_lower_target(form: Form, amount: float, share: float, min_rtt_us: int) -> None:
    less = LEAST_TARGET_PER_RTT + share * (amount - LEAST_TARGET_PER_RTT)
    assert resolved_us(Target(form, min(less, amount)), min_rtt_us) <= resolved_us(Target(form, amount), min_rtt_us)


@given(TARGETS, KNOWN_US)
def test_one_path_is_resolved_as_many_are(target: Target, min_rtt_us: int) -> None:
    (target_us,) = resolved_us(target, min_rtt_us)
    expected_us = min(1000 * target.resolve_ms(min_rtt_us / 1000), UNKNOWN_RTT_US)
    assert target_us == pytest.approx(expected_us, abs=1.01)  # a whole number, and 1 at least


@pytest.mark.parametrize(("text", "known"), [("50ms", True), ("+30ms", False), ("2.5x", False)])
def test_only_an_absolute_target_is_known_without_the_paths_minimum_rtt(text: str, known: bool) -> None:
    target = Target.parse(text)
    assert resolved_us(target, 0, UNKNOWN_RTT_US) == [50_000 * known] * 2
    assert target.is_relative is not known


@given(KNOWN_US)
def test_the_least_multiple_passes_the_guard(min_rtt_us: int) -> None:
    stats = np.zeros(1, FLOW_STATS_DTYPE)
    stats["min_rtt_us"] = min_rtt_us
    stats["target_us"] = Target.parse("1.1x").resolve_us(stats["min_rtt_us"])
    reached_us = LEAST_TARGET_PER_RTT * min_rtt_us
    if reached_us < UNKNOWN_RTT_US:
        assert Guard().judge(stats, np.array([10], np.uint32), np.ones(1, np.bool_))[0].tolist() == [10]


@pytest.mark.parametrize("nonsense", ["", "fast", "50s", "50us", "-3ms", "+2x", "+-1ms", "1e3", "nan", "0x10ms", "５ms",
                                      "5 0ms", "ms", "x", True, None, [50]])  # fmt: skip
def test_what_is_no_target_is_refused_with_the_three_forms(nonsense: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Target.parse(nonsense)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"target {nonsense!r}: write 50ms (an RTT), +30ms (above the path's minimum RTT) or 2.5x (times it)"
    )


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("0ms", "target 0ms: milliseconds are above 0 and at most 10000"),
        ("+0ms", r"target \+0ms: milliseconds are above 0"),
        ("10000.1ms", "at most 10000"),
        ("+10001ms", "at most 10000"),
        (float("nan"), "target nanms: milliseconds are above 0"),
        (-1, "target -1ms: milliseconds are above 0"),
        ("9" * 400, "at most 10000"),
        ("1x", r"target 1x: a multiple of the path's minimum RTT is from 1\.1x .* to 100x"),
        ("1.09x", r"from 1\.1x"),
        ("0x", r"from 1\.1x"),
        ("100.5x", "to 100x"),
    ],
)
def test_an_amount_outside_its_limits_is_refused(text: str | float, limits: str) -> None:
    with pytest.raises(ConfigError, match=limits):
        Target.parse(text)


@pytest.mark.parametrize("text", ["10000ms", "+10000ms", "1.1x", "100x"])
def test_limits_are_targets_themselves(text: str) -> None:
    assert str(Target.parse(text)) == text

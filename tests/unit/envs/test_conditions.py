"""Conditions: what a share of the flows meets, that the rest of a domain does not notice, and what is refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from reinet.core.errors import ConfigError
from reinet.envs.link.conditions import Conditions
from reinet.envs.link.domain import LinkDomain, WeightedTrace
from reinet.envs.link.laws import LogUniform, Uniform, drawn, happens
from reinet.envs.link.spec import FurtherFlow, LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

STEADY = Trace.constant(12.0, 20.0, "steady")
OTHERS = [Trace.constant(mbps, 5.0, f"{mbps:g}") for mbps in (3.0, 6.0)]


def draws(count: int = 400, domain: dict[str, Any] | None = None, **conditions: Any) -> list[LinkSpec]:
    """Paths of one domain, from one seed."""
    made = LinkDomain(STEADY, conditions=Conditions(**conditions), **(domain or {}))
    rng = np.random.default_rng(5)
    return [made.draw(rng) for _ in range(count)]


def share(links: list[LinkSpec], is_so: Any) -> float:
    return sum(map(is_so, links)) / len(links)


def cross_of(link: LinkSpec) -> FurtherFlow:
    (flow,) = link.flows
    assert isinstance(flow, FurtherFlow)
    return flow


def test_the_defaults_draw_nothing_and_change_nothing() -> None:
    rng = np.random.default_rng(1)
    before = rng.bit_generator.state
    link = LinkSpec(STEADY)
    assert Conditions().meet(link, rng) is link
    assert rng.bit_generator.state == before


def test_a_fixed_number_and_a_share_of_nothing_take_no_number() -> None:
    rng = np.random.default_rng(1)
    before = rng.bit_generator.state
    assert drawn(3.0, rng) == 3.0
    assert not happens(0.0, rng)
    assert rng.bit_generator.state == before
    assert happens(1.0, rng)
    assert rng.bit_generator.state != before


def test_each_condition_meets_its_share_of_the_flows_within_its_range() -> None:
    links = draws(codel_share=0.3, cross_share=0.5, app_limited_share=0.2, short_share=0.4)
    assert share(links, lambda link: link.queue == "codel") == pytest.approx(0.3, abs=0.08)
    assert share(links, lambda link: bool(link.flows)) == pytest.approx(0.5, abs=0.08)
    assert share(links, lambda link: link.app_mbps > 0) == pytest.approx(0.2, abs=0.08)
    assert share(links, lambda link: link.flow_bytes > 0) == pytest.approx(0.4, abs=0.08)
    crossed = [cross_of(link) for link in links if link.flows]
    assert all(0 <= flow.start_ms <= 8000 and flow.cc == "cubic" and not flow.stepped for flow in crossed)
    assert all(flow.stop_ms is not None and 1000 <= flow.stop_ms - flow.start_ms <= 10_000 for flow in crossed)
    assert all(1.2 <= link.app_mbps <= 10.8 for link in links if link.app_mbps)
    sizes = [link.flow_bytes for link in links if link.flow_bytes]
    assert min(sizes) < 20_000
    assert max(sizes) > 5_000_000
    assert 10_000 <= min(sizes) <= max(sizes) <= 10_000_000
    both = share(links, lambda link: bool(link.flows) and link.queue == "codel")
    assert both == pytest.approx(0.15, abs=0.06)  # each for itself


def test_the_rate_is_scaled_by_every_factor_of_the_range() -> None:
    rates = [link.trace.mean_mbps for link in draws(rate_scale=LogUniform(0.5, 2.0)) if isinstance(link.trace, Trace)]
    assert len(rates) == 400
    assert 6.0 - 1e-6 <= min(rates) < 6.6
    assert 22.0 < max(rates) <= 24.0 + 1e-6
    assert np.median(rates) == pytest.approx(12.0, rel=0.1)
    assert STEADY.mean_mbps == pytest.approx(12.0)


def test_an_application_is_slower_than_the_scaled_link() -> None:
    links = draws(rate_scale=2.0, app_limited_share=1.0, app_rate=0.5)
    assert {round(link.app_mbps, 6) for link in links} == {12.0}


def test_what_is_around_the_path_does_not_move_the_path() -> None:
    """Conditions are drawn after all of a path, so the first path is the same with and without them."""
    domain = {"mrtt_ms": (4.0, 80.0), "loss": (0.0, 0.01), "cc": ("cubic", "bbr")}
    plain = draws(1, domain)[0]
    met = draws(1, domain, codel_share=1.0, cross_share=1.0, short_share=1.0, rate_scale=Uniform(0.5, 0.9))[0]
    for name in ("mrtt_ms", "loss", "cc", "seed", "start_offset_ms", "target_us", "buffer_bytes"):
        assert getattr(plain, name) == getattr(met, name)


def test_corners_meet_each_condition() -> None:
    domain = LinkDomain(STEADY, conditions=Conditions(codel_share=0.1, cross_share=0.1, short_share=0.1))
    corners = list(domain.corners())
    assert {link.queue for link in corners} == {"droptail", "codel"}
    assert any(link.flows for link in corners)
    assert any(link.flow_bytes for link in corners)
    assert not any(link.app_mbps for link in corners)


def test_the_simulator_runs_all_conditions_together() -> None:
    links = draws(
        12, codel_share=0.5, cross_share=0.7, app_limited_share=0.4, short_share=0.5, rate_scale=LogUniform(0.5, 2.0)
    )
    batch = SimBatch(links)
    batch.reset()
    for _ in range(200):
        batch.step_caps(np.full(12, 20, np.uint32))
        assert np.isfinite(batch.states).all()
        assert np.isfinite(batch.rewards).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"codel_share": 1.5}, "codel_share: 1.5 is no share"),
        ({"short_share": float("nan")}, "short_share: nan is no share"),
        ({"rate_scale": 0.0}, "rate_scale: .* reaches down to 0"),
        ({"rate_scale": Uniform(2.0, 1.0)}, "rate_scale: .* is no range"),
        ({"app_rate": Uniform(0.5, 1.0)}, "app_rate: .* stay below 1"),
        ({"cross_ms": Uniform(0.0, 10.0)}, "cross_ms: .* reaches below 1"),
        ({"short_bytes": 0.0}, "short_bytes: .* reaches below 1"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Conditions(**fields)


def names_drawn(traces: Sequence[Trace], count: int) -> list[str]:
    domain, rng = LinkDomain(traces), np.random.default_rng(2)
    links = [domain.draw(rng) for _ in range(count)]
    return [link.trace.name for link in links if isinstance(link.trace, Trace)]


def weighted(trace: Trace, weight: float) -> WeightedTrace:
    return WeightedTrace(trace.opportunities_ms, trace.name, None, weight)


def test_traces_are_drawn_by_their_weights() -> None:
    names = names_drawn([STEADY, weighted(OTHERS[0], 3.0), weighted(OTHERS[1], 0.5)], 900)
    shares = [names.count(name) / 900 for name in ("steady", "3", "6")]
    assert shares == pytest.approx([1 / 4.5, 3 / 4.5, 0.5 / 4.5], abs=0.05)


def test_weights_that_are_all_the_same_draw_as_no_weights_do() -> None:
    assert names_drawn(OTHERS, 50) == names_drawn([weighted(trace, 7.0) for trace in OTHERS], 50)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_a_number_above_0(weight: float) -> None:
    with pytest.raises(ConfigError, match="trace a: weight is"):
        WeightedTrace(STEADY.opportunities_ms, "a", None, weight)

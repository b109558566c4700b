"""What is drawn: the laws, what stays fixed, and that environments and training draw what they always drew."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.links import MIXED, TRACES
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.links import domain_of, selection_links
from reinet.core.errors import ConfigError
from reinet.envs.link.conditions import Conditions
from reinet.envs.link.domain import LinkDomain, WeightedTrace, as_reference, target_above
from reinet.envs.link.laws import LogUniform, Uniform, drawn, happens
from reinet.envs.link.spec import FurtherFlow, LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

SHOWN = (
    "start_offset_ms", "mrtt_ms", "buffer_bytes", "target_us", "loss", "jitter_us", "pkts_per_ack", "cc", "queue",
    "seed",
)  # fmt: skip


def shown(link: LinkSpec) -> list[Any]:
    values = [getattr(link, name) for name in SHOWN]
    return [int(link.trace_ms[-1]), *(value.hex() if isinstance(value, float) else value for value in values)]


def digest(links: Iterable[LinkSpec]) -> str:
    return hashlib.sha256(json.dumps([shown(link) for link in links]).encode()).hexdigest()


def draws(domain: LinkDomain, seed: int, count: int) -> list[LinkSpec]:
    rng = np.random.default_rng(seed)
    return [domain.draw(rng) for _ in range(count)]


# The digests were made by the two randomisers that this one took the place of: models and published figures depend on
# what they drew.


def test_the_vector_environment_draws_what_it_always_drew() -> None:
    assert shown(draws(MIXED, 3, 1)[0]) == [
        4000, 342, "0x1.04333d020e766p+3", 498156, 56032, "0x1.ed81533401c33p-11", 866, "0x1.0000000000000p+1", "reno",
        "droptail", 1137256737,
    ]  # fmt: skip
    assert digest(draws(MIXED, 3, 500)) == "a9b5863091c2125d348b07bfcc153f6ff0b4536e97db0308a4d46792b27953b2"


def test_what_is_fixed_takes_nothing_from_the_generator_but_the_seed() -> None:
    links = draws(LinkDomain(TRACES[0]), 3, 50)
    assert digest(links) == "4a275a6abe8deb7d133f20525ff1dbace75749017fc4e65021e189310c241bbe"
    assert [link.seed for link in links] == [int(seed) for seed in np.random.default_rng(3).integers(2**32, size=50)]


def test_training_draws_what_it_always_drew() -> None:
    section = TrainConfig().links
    links = draws(domain_of(section, TRACES), 4, 500)
    assert shown(links[0]) == [
        4000, 3772, "0x1.2800000000000p+6", 39831, 115461, "0x0.0p+0", 1094, "0x1.3229a40d074c5p+1", "cubic",
        "droptail", 1247479810,
    ]  # fmt: skip
    assert digest(links) == "06e1d5923e1221106b686eed79fe0326d5410dca015d0a0ebed5a62e9961fb75"
    one = draws(domain_of(section, TRACES[:1]), 4, 500)
    assert digest(one) == "ea90f47639d1c4adac11a726400a2bbdc5c0a1d67e893634acd9b8ab755a0adb"


def test_selection_draws_what_it_always_drew() -> None:
    config = TrainConfig.model_validate({"traces": {"seconds": 5.0, "select_count": 4}, "run": {"evaluate_seeds": 1}})
    links = selection_links(config)
    assert digest(links) == "4099a2363e766f1431c0ee9b1d60f0e8573587e2aa5834120f6224f68fe35ab8"
    assert [link.mrtt_ms for link in links[::2]] == [20.0] * 4


@given(low=st.floats(1e-3, 1e3), factor=st.floats(1.0, 1e3), share=st.floats(0.0, 1.0))
def test_a_law_stays_within_its_limits(low: float, factor: float, share: float) -> None:
    for law in (Uniform(low, low * factor), LogUniform(low, low * factor)):
        assert law.low * (1 - 1e-9) <= law.at(share) <= law.high * (1 + 1e-9)
    assert LogUniform(low, low * factor).at(0.5) == pytest.approx(low * math.sqrt(factor))


def test_any_field_of_a_path_can_be_drawn() -> None:
    laws = {"wired_buffer_bytes": LogUniform(3000.0, 90_000.0), "pkts_per_ack": Uniform(2.0, 3.0), "app_mbps": 4.0}
    links = draws(LinkDomain(TRACES[0], link=laws), 0, 200)
    sizes = [link.wired_buffer_bytes for link in links]
    assert min(sizes) < 4000
    assert max(sizes) > 70_000
    assert all(isinstance(size, int) for size in sizes)
    assert 2.4 < np.mean([link.pkts_per_ack for link in links]) < 2.6
    assert {link.app_mbps for link in links} == {4.0}


def test_a_share_of_the_paths_is_the_reference() -> None:
    domain = LinkDomain(TRACES[0], mrtt_ms=(30.0, 80.0), target_ms=(100.0, 120.0), reference_share=0.25)
    links = draws(domain, 1, 400)
    reference = [link for link in links if link.mrtt_ms == 20.0]
    assert 60 < len(reference) < 140
    assert {(link.buffer_bytes, link.target_us) for link in reference} == {(150_000, 50_000)}
    link = links[0]
    assert (as_reference(link).seed, as_reference(link).start_offset_ms) == (link.seed, link.start_offset_ms)


def test_base_rtts_are_even_where_mahimahi_shall_take_them() -> None:
    links = draws(LinkDomain(TRACES[0], mrtt_ms=(4.0, 9.0), even_mrtt=True), 0, 100)
    assert {link.mrtt_ms for link in links} == {4.0, 6.0, 8.0}


@pytest.mark.parametrize(
    ("text", "least_rtts", "more_ms"), [("2.5x", 2.5, 0.0), ("+30ms", 1.0, 30.0), ("99ms", 0.0, 99.0)]
)
def test_a_text_is_a_target_resolved_from_each_base_rtt(text: str, least_rtts: float, more_ms: float) -> None:
    links = draws(LinkDomain(TRACES[0], mrtt_ms=(4.0, 80.0), target_ms=text), 0, 50)
    assert len({link.mrtt_ms for link in links}) == 50
    assert [link.target_us for link in links] == [round(1000 * (least_rtts * ln.mrtt_ms + more_ms)) for ln in links]


def test_a_text_takes_nothing_from_the_random_generator() -> None:
    of_text, of_number = (draws(LinkDomain(TRACES[0], mrtt_ms=(4.0, 80.0), target_ms=target), 3, 20)
                          for target in ("+30ms", 100.0))  # fmt: skip
    assert [(link.mrtt_ms, link.seed) for link in of_text] == [(link.mrtt_ms, link.seed) for link in of_number]


def test_a_target_above_the_base_rtt_leaves_the_guard_its_margin() -> None:
    assert target_above(20.0, 30.0) == 50.0
    assert target_above(80.0, 1.0) == pytest.approx(1.1 * 82.0)
    links = draws(LinkDomain(TRACES[0], mrtt_ms=(4.0, 80.0), queueing_target_ms=(15.0, 80.0)), 0, 100)
    assert all(link.target_us >= 1000 * (link.mrtt_ms + 15.0) - 1 for link in links)


def test_corners_are_the_ends_of_all_ranges_with_every_choice() -> None:
    corners = list(MIXED.corners())
    assert {(link.cc, link.queue) for link in corners} == {
        (cc, queue) for cc in ("cubic", "reno") for queue in ("droptail", "codel")
    }
    assert {round(link.mrtt_ms, 9) for link in corners} == {4.0, 80.0}
    assert {link.buffer_bytes for link in corners} == {30_000, 1_000_000}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reference_share": 1.5}, "reference_share: 1.5 is no share"),
        ({"seeds": 0}, "seeds: 0 is outside"),
        ({"queueing_target_ms": 10.0, "target_ms": 60.0}, "queueing_target_ms: give it or target_ms"),
        ({"queueing_target_ms": 10.0, "target_ms": "2.5x"}, "queueing_target_ms: give it or target_ms"),
        ({"queueing_target_ms": (1.0, 1e308)}, "target_us: 4294967296 is outside"),
        ({"target_ms": "fast"}, "target 'fast': write 50ms"),
        ({"target_ms": np.int64(10), "mrtt_ms": 40.0}, "at least 44 ms"),
        ({"target_ms": "+5ms", "mrtt_ms": (4.0, 80.0)}, "target_ms: 85 ms is below 1.1 x .* at least 88 ms"),
        ({"mrtt_ms": LogUniform(0.0, 4.0)}, "mrtt_ms"),
        ({"loss": Uniform(0.2, 0.1)}, "loss"),
        ({"link": {"pkts_per_ack": Uniform(1.0, 3.0)}}, "pkts_per_ack: 1.0 is outside"),
        ({"link": {"pkts_per_ack": Uniform(3.0, 2.0)}}, "pkts_per_ack"),
        ({"link": {"mrtt_ms": Uniform(3.0, 5.0)}}, "mrtt_ms is the domain's own; give it beside link"),
        ({"link": {"seed": 1}}, "seed is the domain's own; it is drawn for each path"),
        ({"link": {"start_offset_ms": 5}}, "start_offset_ms is the domain's own; .* with random_start anywhere"),
        ({"link": {"target_us": 50_000}}, "target_us is the domain's own; give target_ms beside link"),
        ({"cc": ()}, "cc: at least one is needed"),
        ({"queue": []}, "queue: at least one is needed"),
        ({"mrtt_ms": "20"}, "mrtt_ms: '20' is no number"),
        ({"mrtt_ms": None}, "mrtt_ms: None is no number"),
        ({"mrtt_ms": [4.0]}, "mrtt_ms: .* is no number; give one, or a pair"),
        ({"mrtt_ms": (4.0, 20.0, 80.0)}, "mrtt_ms: .* is no number; give one, or a pair"),
        ({"loss": ("0", "1")}, "loss: .* is no number"),
    ],
)
def test_a_domain_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LinkDomain(TRACES[0], **fields)


def test_a_range_may_be_a_list_as_yaml_and_json_have_it() -> None:
    ranges: dict[str, Any] = {"mrtt_ms": [4, 40], "target_ms": [50, 100], "loss": [0, 0.01]}
    domain = LinkDomain(TRACES[0], **ranges)
    expected = draws(LinkDomain(TRACES[0], **{key: tuple(pair) for key, pair in ranges.items()}), 3, 20)
    ranges["mrtt_ms"].append("changed after the domain was made")
    assert digest(draws(domain, 3, 20)) == digest(expected)
    assert gym.make("reinet/SimLink-v0", trace=TRACES[0], mrtt_ms=[4, 40]).reset(seed=1)[1]["min_rtt_us"] > 4000


# Ends of ranges that no corner has together: each of these was refused in the midst of a run.
OPPOSED: list[tuple[dict[str, Any], str]] = [
    ({"mrtt_ms": (4.0, 80.0), "link": {"forward_ms": Uniform(0.0, 70.0)}}, "forward_ms: a draw near 70, .* 0.0 to 4.0"),
    (
        {"link": {"start_ms": Uniform(0.0, 500.0), "stop_ms": Uniform(400.0, 900.0)}},
        "start_ms: .* is not after start_ms",
    ),
    (
        {"buffer_bytes": (300.0, 9000.0), "link": {"mss_bytes": Uniform(88, 1448)}},
        "mss_bytes: a draw near 1448, .*buffer",
    ),
    (
        {"link": {"wired_buffer_bytes": LogUniform(300.0, 9000.0), "mss_bytes": Uniform(88, 1448)}},
        "mss_bytes: .*wired_buffer_bytes: 300 is outside",
    ),
    (
        {"link": {"flow_bytes": Uniform(1e6, 4e12), "mss_bytes": Uniform(88, 1448)}},
        "flow_bytes: a draw near 4e.12, .* segments of mss_bytes = 88",
    ),
    (
        {"mrtt_ms": 60.0, "link": {"forward_ms": 25.0}, "target_ms": 90.0, "reference_share": 0.5},
        "reference_share: on a reference path, whose mrtt_ms is 20: forward_ms: 25.0 is outside",
    ),
    ({"buffer_bytes": Uniform(0.0, 9000.0), "link": {"buffer_pkts": 10}}, "buffer_bytes: .* begins at 0"),
    ({"conditions": Conditions(rate_scale=LogUniform(0.5, 1e5))}, "rate_scale: .* cannot be scaled by 100000"),
]


@pytest.mark.parametrize(("fields", "message"), OPPOSED)
def test_what_some_draw_would_be_refused_for_is_refused_as_the_domain_is_made(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LinkDomain(TRACES[0], **fields)


@given(
    mrtt=st.tuples(st.floats(0.5, 50), st.floats(1.0, 4.0)),
    forward=st.none() | st.tuples(st.floats(0, 50), st.floats(0, 50)),
    start=st.none() | st.tuples(st.floats(0, 500), st.floats(0, 500)),
    stop=st.none() | st.tuples(st.floats(0, 900), st.floats(0, 900)),
    mss=st.tuples(st.integers(88, 1448), st.integers(88, 1448)),
    buffer=st.tuples(st.floats(100, 3000), st.floats(1, 100)),
    even=st.booleans(),
    reference_share=st.none() | st.just(0.5),
    seed=st.integers(0, 99),
)
def test_a_domain_that_can_be_made_can_be_drawn_from(
    mrtt: Any, forward: Any, start: Any, stop: Any, mss: Any, buffer: Any, even: bool, reference_share: Any, seed: int
) -> None:
    pairs = {"forward_ms": forward, "start_ms": start, "stop_ms": stop, "mss_bytes": mss}
    link = {key: Uniform(*sorted(pair)) for key, pair in pairs.items() if pair is not None}
    try:
        domain = LinkDomain(
            TRACES[0], mrtt_ms=(mrtt[0], mrtt[0] * mrtt[1]), buffer_bytes=(buffer[0], buffer[0] * buffer[1]), link=link,
            even_mrtt=even, reference_share=reference_share,
        )  # fmt: skip
    except ConfigError:
        return
    draws(domain, seed, 20)


# --- what a share of the flows meets, that the rest of a domain does not notice; and weights of traces ---

STEADY = Trace.constant(12.0, 20.0, "steady")
STEADIES = [Trace.constant(mbps, 5.0, f"{mbps:g}") for mbps in (3.0, 6.0)]


def met(count: int = 400, domain: dict[str, Any] | None = None, **conditions: Any) -> list[LinkSpec]:
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
    assert Conditions().apply(link, rng) is link
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
    links = met(codel_share=0.3, cross_share=0.5, app_limited_share=0.2, short_share=0.4)
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
    rates = [link.trace.mean_mbps for link in met(rate_scale=LogUniform(0.5, 2.0)) if isinstance(link.trace, Trace)]
    assert len(rates) == 400
    assert 6.0 - 1e-6 <= min(rates) < 6.6
    assert 22.0 < max(rates) <= 24.0 + 1e-6
    assert np.median(rates) == pytest.approx(12.0, rel=0.1)
    assert STEADY.mean_mbps == pytest.approx(12.0)


def test_an_application_is_slower_than_the_scaled_link() -> None:
    links = met(rate_scale=2.0, app_limited_share=1.0, app_rate=0.5)
    assert {round(link.app_mbps, 6) for link in links} == {12.0}


def test_what_is_around_the_path_does_not_move_the_path() -> None:
    """Conditions are drawn after all of a path, so the first path is the same with and without them."""
    domain = {"mrtt_ms": (4.0, 80.0), "loss": (0.0, 0.01), "cc": ("cubic", "bbr")}
    plain = met(1, domain)[0]
    changed = met(1, domain, codel_share=1.0, cross_share=1.0, short_share=1.0, rate_scale=Uniform(0.5, 0.9))[0]
    for name in ("mrtt_ms", "loss", "cc", "seed", "start_offset_ms", "target_us", "buffer_bytes"):
        assert getattr(plain, name) == getattr(changed, name)


def test_corners_meet_each_condition() -> None:
    domain = LinkDomain(STEADY, conditions=Conditions(codel_share=0.1, cross_share=0.1, short_share=0.1))
    corners = list(domain.corners())
    assert {link.queue for link in corners} == {"droptail", "codel"}
    assert any(link.flows for link in corners)
    assert any(link.flow_bytes for link in corners)
    assert not any(link.app_mbps for link in corners)


def test_the_simulator_runs_all_conditions_together() -> None:
    links = met(
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
        ({"cross_share": "0.5"}, "cross_share: a share from 0 to 1 is needed, not '0.5'"),
        ({"rate_scale": 0.0}, "rate_scale: .* reaches down to 0"),
        ({"rate_scale": Uniform(2.0, 1.0)}, "rate_scale: .* is no range"),
        ({"app_rate": Uniform(0.5, 1.0)}, "app_rate: .* stay below 1"),
        ({"cross_ms": Uniform(0.0, 10.0)}, "cross_ms: .* reaches below 1"),
        ({"short_bytes": 0.0}, "short_bytes: .* reaches below 1"),
        ({"cross_start_ms": Uniform(0.0, 1e13)}, "cross_start_ms, cross_ms: cross traffic may end at 1e.13 ms"),
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
    names = names_drawn([STEADY, weighted(STEADIES[0], 3.0), weighted(STEADIES[1], 0.5)], 900)
    shares = [names.count(name) / 900 for name in ("steady", "3", "6")]
    assert shares == pytest.approx([1 / 4.5, 3 / 4.5, 0.5 / 4.5], abs=0.05)


def test_weights_that_are_all_the_same_draw_as_no_weights_do() -> None:
    assert names_drawn(STEADIES, 50) == names_drawn([weighted(trace, 7.0) for trace in STEADIES], 50)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan"), "3", None])
def test_a_weight_is_a_number_above_0(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"trace a: weight.* a number above 0"):
        WeightedTrace(STEADY.opportunities_ms, "a", None, weight)

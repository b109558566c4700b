"""One description of a path: what each side takes of it, what it refuses by name, and that nothing is lost between."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.places import ROOT
from reinet.core import HEADER_BYTES, OPPORTUNITY_BYTES
from reinet.core.errors import ConfigError
from reinet.envs.link.spec import QUEUES, SCHEDULERS, FlowSpec, FurtherFlow, LinkSpec
from reinet.envs.mahimahi.spec import EMULATED, downlink_ms, queue_options, require_emulated, uplink_ms
from reinet.envs.sim import SIM_CONGESTION_CONTROLS, SimBatch, _sim
from reinet.envs.sim._driven import delays_us
from reinet.envs.sim._driven import opportunities_until as counted_natively
from reinet.envs.sim.options import native_options, require_simulated
from reinet.envs.trace import Trace
from reinet.envs.trace.counting import next_opportunity_ms, opportunities_between, opportunities_until

TRACE = Trace.constant(12.0, 2.0)
OTHER = Trace.constant(5.0, 3.0)


def names(kind: type[FlowSpec]) -> set[str]:
    return {f.name for f in fields(kind)}


def test_both_sides_of_the_border_have_the_same_names() -> None:
    """Traces go beside the options, and the flows are options of their own."""
    assert set(_sim.FlowOptions.NAMES) == names(FurtherFlow) - {"trace"}
    assert set(_sim.LinkOptions.NAMES) == names(LinkSpec) - names(FlowSpec) - {"flows", "uplink"}
    assert _sim.QUEUES == QUEUES
    assert _sim.SCHEDULERS == SCHEDULERS


def test_the_page_names_every_field() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text()
    assert [name for name in names(LinkSpec) | names(FurtherFlow) if f"`{name}`" not in text] == []


LIMITS_MS = st.integers(1, 10_000)
OF_A_FLOW: dict[str, st.SearchStrategy[Any]] = {
    "cc": st.sampled_from(SIM_CONGESTION_CONTROLS),
    "start_ms": st.floats(0.0, 1e6),
    "stop_ms": st.none() | st.floats(2e6, 1e9),
    "mrtt_ms": st.floats(10.0, 10_000.0),
    "forward_ms": st.none() | st.floats(0.0, 10.0),
    "flow_bytes": st.integers(0, 2**38),
    "app_mbps": st.just(0.0) | st.floats(1e-9, 1e5),
    "object_bytes": st.integers(0, 2**32),
    "pause_ms": st.floats(0.0, 1e6),
    "target_us": st.integers(0, 2**32 - 1),
}
OF_A_FURTHER_FLOW = OF_A_FLOW | {"cap_pkts": st.integers(0, 2**31), "stepped": st.booleans()}
OF_A_LINK: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.sampled_from(QUEUES),
    "buffer_bytes": st.integers(1504, 2**30),
    "buffer_pkts": st.integers(0, 2**31),
    "codel_target_ms": LIMITS_MS,
    "codel_interval_ms": LIMITS_MS,
    "pie_reference_ms": LIMITS_MS,
    "pie_burst_ms": LIMITS_MS,
    "start_offset_ms": st.integers(0, 2**40),
    "seed": st.integers(0, 2**64 - 1),
    "mss_bytes": st.integers(88, 1448),
    "late_us": st.integers(0, 999),
    "jitter_us": st.integers(0, 1_000_000),
    "forward_jitter_us": st.integers(0, 1_000_000),
    "pkts_per_ack": st.floats(2.0, 64.0),
    "detour_ms": st.just(()) | st.floats(0.1, 1e4).map(lambda ms: ((3.5, 20.0), (12.5, ms))),
    "decision_ms": st.floats(0.0, 1000.0),
    "loss": st.floats(0.0, 0.999),
    "wired_mbps": st.just(()) | st.floats(0.1, 1e5).map(lambda mbps: ((0.0, 5.0), (12.5, mbps))),
    "wired_buffer_bytes": st.integers(1504, 2**30),
    "scheduler": st.sampled_from(SCHEDULERS),
    "fair_window_ms": st.floats(1.0, 1e6),
}


def assert_the_same(native: Any, said: Mapping[str, Any]) -> None:
    for name in native.NAMES:
        value = getattr(native, name)
        assert (tuple(value) if name in ("wired_mbps", "detour_ms") else value) == said[name], name


def at_once(fields_of_it: dict[str, Any]) -> dict[str, Any]:
    """Objects are written at once: with them there is no rate. Each has a segment, however small it is."""
    if not fields_of_it["object_bytes"]:
        return fields_of_it
    return fields_of_it | {"app_mbps": 0.0, "flow_bytes": fields_of_it["flow_bytes"] % 2**31}


@given(
    link=st.fixed_dictionaries(OF_A_FLOW | OF_A_LINK).map(at_once),
    flow=st.fixed_dictionaries(OF_A_FURTHER_FLOW).map(at_once),
)
def test_every_field_reaches_the_native_side_as_it_was_said(link: dict[str, Any], flow: dict[str, Any]) -> None:
    """The strategies name every field, so a new one without an entry here fails."""
    assert set(link) == names(LinkSpec) - {"trace", "uplink", "flows"}
    assert set(flow) == names(FurtherFlow) - {"trace"}
    options, traces, uplink_ms = native_options(LinkSpec(TRACE, **link, flows=[flow]))
    assert uplink_ms.size == 0
    assert_the_same(options, link)
    assert_the_same(options.flows[0], {**link, "cap_pkts": 0, "stepped": True})
    assert_the_same(options.flows[1], flow)
    assert len(traces) == (2 if link["scheduler"] == "proportional-fair" else 1)
    assert all(np.array_equal(trace, TRACE.opportunities_ms) for trace in traces)


def test_a_further_flow_has_from_the_first_what_it_does_not_say() -> None:
    link = LinkSpec(TRACE, cc="bbr", mrtt_ms=30.0, forward_ms=4.0, target_us=70_000, flows=[{}, {"mrtt_ms": 8.0}])
    first, like_it, nearer = link.all_flows()
    assert first is link
    assert (like_it.cc, like_it.mrtt_ms, like_it.forward_ms, like_it.target_us) == ("cubic", 30.0, 4.0, 70_000)
    assert (nearer.mrtt_ms, nearer.forward_ms, nearer.target_us) == (8.0, None, 70_000)  # half of its own delay
    assert like_it.trace is TRACE


def test_in_a_cell_each_flow_has_its_channel() -> None:
    link = LinkSpec(TRACE, scheduler="proportional-fair", flows=[FurtherFlow(trace=OTHER), FurtherFlow()])
    channels = native_options(link)[1]
    assert [int(channel[-1]) for channel in channels] == [2000, 3000, 2000]


def test_a_trace_may_be_an_array_which_is_shared() -> None:
    array = TRACE.opportunities_ms
    assert np.shares_memory(LinkSpec(array).trace_ms, array)
    assert np.shares_memory(LinkSpec(TRACE).trace_ms, array)


@given(mrtt_us=st.integers(0, 2_000_000), share=st.none() | st.floats(0.0, 1.0))
def test_milliseconds_become_microseconds_as_python_rounds(mrtt_us: int, share: float | None) -> None:
    """Halves go to the even one."""
    mrtt_ms = mrtt_us / 2000
    forward_ms = None if share is None else min(round(share * mrtt_us) / 2000, mrtt_ms)
    there_us, back_us = delays_us(mrtt_ms, forward_ms)
    if forward_ms is None:
        assert there_us == back_us == round(mrtt_ms * 1000) // 2
    else:
        assert (there_us, there_us + back_us) == (round(forward_ms * 1000), round(mrtt_ms * 1000))


@pytest.mark.parametrize(
    ("fields_of_it", "message"),
    [
        ({"mrt_ms": 3}, "link: unknown key mrt_ms; known are"),
        ({"queue": "codl"}, "queue: there is no queue 'codl'; did you mean 'codel'"),
        ({"scheduler": "pf"}, "scheduler: there is no scheduler"),
        ({"mrtt_ms": None}, "mrtt_ms: a path needs one"),
        ({"cc": 3}, "cc: 3 is no name"),
        ({"buffer_bytes": OPPORTUNITY_BYTES - 1}, "buffer_bytes: 1503 is outside 1504"),
        ({"mss_bytes": 1000, "buffer_bytes": 1000 + HEADER_BYTES - 1}, "buffer_bytes: 1055 is outside 1056"),
        ({"buffer_bytes": 0}, "buffer_bytes: a droptail queue needs a limit"),
        ({"stop_ms": 0.0}, "stop_ms: 0.0 is not after start_ms"),
        ({"forward_ms": 21.0}, "forward_ms: 21.0 is outside 0.0 to 20.0"),
        ({"object_bytes": 9000, "app_mbps": 1.0}, "object_bytes, app_mbps: an application writes objects at once or"),
        ({"trace": [1.5]}, "trace: an array"),
        ({"trace": np.array([1, 2**32 + 5], np.uint64)}, "trace: 4294967301 ms is beyond 4294967295"),
        (
            {"flow_bytes": 2**42, "mss_bytes": 88},
            "flow_bytes: .* are 49977801263 segments of mss_bytes = 88; 4294967294",
        ),
        ({"flow_bytes": 2**33, "object_bytes": 1}, "flow_bytes: .* in objects of 1, are 8589934592 segments"),
        ({"flows": [{"flow_bytes": 2**40}], "mss_bytes": 100}, "flow_bytes: .* segments of mss_bytes = 100"),
        ({"app_mbps": 1e-300}, "app_mbps: 1e-300 is outside 1e-09 to 100000.0"),
        ({"wired_mbps": np.array([[0.0, 5.0], [9.0, 6.0]])}, "wired_mbps: .* pairs are needed"),
        ({"wired_mbps": [(0.0, 1e-300)]}, "wired_mbps: .* rates 0 or from 1e-09"),
        ({"wired_mbps": [(0.0, 1.0), (1e13, 2.0)]}, "wired_mbps: .* times rising up to 1e.12 ms"),
        ({"decision_ms": -1.0}, "decision_ms: -1.0 is outside 0.0 to 1000.0"),
        ({"uplink": "up"}, "uplink: an array"),
        ({"flows": [{"mrtt_ms": 5.0, "forward_ms": 6.0}]}, "forward_ms: 6.0 is outside 0.0 to 5.0"),
        ({"flows": [{"forward_ms": 21.0}]}, "forward_ms: 21.0 is outside 0.0 to 20.0"),
        ({"flows": [{"trace": TRACE}]}, "a channel of its own only with scheduler"),
        ({"flows": [{"stepped": 1}]}, "stepped: 1 is neither true nor false"),
        ({"flows": [{"caps": 1}]}, "flow: unknown key caps"),
    ],
)
def test_what_no_link_can_do_is_refused(fields_of_it: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LinkSpec.from_mapping({"trace": TRACE, **fields_of_it})


def test_numpys_whole_numbers_are_taken_as_pythons_are() -> None:
    narrow = {"mss_bytes": np.uint8(88), "flow_bytes": np.int32(10**6), "buffer_bytes": np.int64(9000)}
    batch = SimBatch([LinkSpec(TRACE, **narrow), LinkSpec(TRACE, mss_bytes=88, flow_bytes=10**6, buffer_bytes=9000)])
    batch.reset()
    assert batch.stats["mss_bytes"].tolist() == [88, 88]
    assert np.array_equal(batch.states[0], batch.states[1])


def test_a_path_needs_a_trace() -> None:
    with pytest.raises(ConfigError, match="link: the key trace is missing"):
        LinkSpec.from_mapping({"mrtt_ms": 20.0})


# What each side refuses: every field has a value here that says something else than the default does.
ELSE: dict[str, Any] = {
    "cc": "reno", "start_ms": 5.0, "stop_ms": 900.0, "mrtt_ms": 30.0, "forward_ms": 4.0, "flow_bytes": 9000,
    "app_mbps": 1.0, "object_bytes": 9000, "pause_ms": 9.0,
    "target_us": 60_000, "trace": OTHER, "uplink": OTHER, "buffer_bytes": 9000, "start_offset_ms": 7,
    "seed": 3, "mss_bytes": 1000, "late_us": 0, "jitter_us": 0, "pkts_per_ack": 2.5, "forward_jitter_us": 9,
    "detour_ms": [(5, 6.0)], "decision_ms": 2.0, "loss": 0.1,
    "queue": "pie", "buffer_pkts": 9, "codel_target_ms": 9, "codel_interval_ms": 9,
    "pie_reference_ms": 9, "pie_burst_ms": 9, "wired_mbps": [(0, 6.0)], "wired_buffer_bytes": 9000, "flows": [{}],
    "scheduler": "proportional-fair", "fair_window_ms": 9.0,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(names(LinkSpec)))
def test_each_side_takes_a_field_or_refuses_it_by_name(name: str) -> None:
    link = replace(LinkSpec(TRACE), **{name: ELSE[name]})
    assert require_simulated(link) is link
    if name in (*EMULATED, "seed"):
        assert require_emulated(link) is link
    else:
        with pytest.raises(ConfigError, match=f"^{name}: Mahimahi's link has no such thing, only the simulated one"):
            require_emulated(link)


@pytest.mark.parametrize("flows", [[], [{"cc": "reno"}]])
def test_the_simulator_has_its_own_congestion_controls(flows: list[dict[str, Any]]) -> None:
    wrong = {"flows": [{"cc": "cubik"}, *flows]} if flows else {"cc": "cubik"}
    with pytest.raises(ConfigError, match="cc: the simulator has no congestion control 'cubik'; did you mean 'cubic'"):
        require_simulated(LinkSpec(TRACE, **wrong))
    assert require_emulated(LinkSpec(TRACE, cc="a-kernel-module")).cc == "a-kernel-module"


def test_empty_lists_are_as_good_as_none_for_mahimahi() -> None:
    assert require_emulated(LinkSpec(TRACE, wired_mbps=[], flows=[]))


@pytest.mark.parametrize(
    ("fields_of_it", "told"),
    [
        ({}, "droptail bytes=150000"),
        ({"queue": "drophead", "buffer_pkts": 40}, "drophead bytes=150000,packets=40"),
        ({"buffer_bytes": 0, "buffer_pkts": 40}, "droptail packets=40"),
        ({"queue": "codel", "codel_interval_ms": 80}, "codel bytes=150000,target=5,interval=80"),
        ({"queue": "pie", "pie_reference_ms": 20}, "pie bytes=150000,qdelay_ref=20,max_burst=150"),
        ({"queue": "infinite"}, "infinite"),
    ],
)
def test_mm_link_is_told_of_the_queue_in_its_own_words(fields_of_it: dict[str, Any], told: str) -> None:
    options = queue_options(require_emulated(LinkSpec(TRACE, **fields_of_it)))
    queue, *arguments = told.split()
    assert options == [f"--downlink-queue={queue}", *(f"--downlink-queue-args={text}" for text in arguments)]


@pytest.mark.parametrize(
    ("fields_of_it", "message"),
    [
        ({"mrtt_ms": 5.0}, "mrtt_ms is 5"),
        ({"mrtt_ms": 20.5}, "mrtt_ms is 20.5"),
        ({"buffer_bytes": 2 * OPPORTUNITY_BYTES - 1}, "buffer_bytes is 3007; two full packets"),
        ({"buffer_bytes": 0, "buffer_pkts": 1}, "buffer_pkts is 1"),
    ],
)
def test_what_mahimahi_would_do_otherwise_is_refused(fields_of_it: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_emulated(LinkSpec(TRACE, **fields_of_it))


def test_an_uplink_that_is_not_given_is_wider_than_acks_need() -> None:
    assert uplink_ms(LinkSpec(TRACE)).size / uplink_ms(LinkSpec(TRACE))[-1] == pytest.approx(4.0)
    assert np.array_equal(uplink_ms(LinkSpec(TRACE, uplink=OTHER)), OTHER.opportunities_ms)


loops = st.lists(st.integers(0, 50), min_size=1, max_size=30).map(sorted).filter(lambda times: times[-1] > 0)
moments_ms = st.integers(0, 300) | st.floats(0, 300)


@given(times_ms=loops, offset_ms=st.integers(0, 200))
def test_a_moved_start_keeps_the_looping_trace(times_ms: list[int], offset_ms: int) -> None:
    moved_ms = downlink_ms(LinkSpec(np.array(times_ms, np.uint32), start_offset_ms=offset_ms))
    loop_ms = times_ms[-1]
    assert moved_ms[-1] == loop_ms
    assert moved_ms.size == len(times_ms)
    assert (np.diff(moved_ms) >= 0).all()
    start_ms = min((t for t in times_ms if t >= offset_ms % loop_ms), default=0)
    if offset_ms % loop_ms:
        assert sorted((t + start_ms) % loop_ms for t in moved_ms.tolist()) == sorted(t % loop_ms for t in times_ms)


def test_a_moved_start_moves_both_directions() -> None:
    times_ms, offset_ms = np.array([3, 40, 90], np.uint32), 20
    link = LinkSpec(TRACE, uplink=times_ms, start_offset_ms=offset_ms)
    assert uplink_ms(link).tolist() == [20, 70, 73, 90]  # the last one is added, so that the loop keeps its length
    assert uplink_ms(replace(link, start_offset_ms=40)).tolist() == [50, 53, 90]
    assert uplink_ms(replace(link, start_offset_ms=0)).tolist() == times_ms.tolist()


@given(times_ms=loops, start_ms=moments_ms, length_ms=moments_ms)
def test_opportunities_are_counted_as_the_loops_have_them(
    times_ms: list[int], start_ms: float, length_ms: float
) -> None:
    end_ms = start_ms + length_ms
    every = [t + loop * times_ms[-1] for loop in range(601 // times_ms[-1] + 1) for t in times_ms]
    loop = np.array(times_ms, np.uint32)
    assert opportunities_between(loop, start_ms, end_ms) == sum(start_ms <= t < end_ms for t in every)
    closed = opportunities_until(loop, [start_ms, end_ms], closed=True)
    assert closed.tolist() == [sum(t <= moment for t in every) for moment in (start_ms, end_ms)]
    assert next_opportunity_ms(loop, start_ms) == min(t for t in [*every, every[-1] + times_ms[0]] if t >= start_ms)


@given(times_ms=loops, until_ms=st.integers(0, 1000))
def test_the_simulator_counts_opportunities_as_python_does(times_ms: list[int], until_ms: int) -> None:
    loop = np.array(times_ms, np.uint32)
    assert counted_natively(times_ms, until_ms) == opportunities_until(loop, until_ms, closed=True)


def test_the_stub_names_no_option() -> None:
    """One list in C++, one in Python; a third in the stub would have to be kept up by hand."""
    stub = (ROOT / "envs" / "sim" / "_sim.pyi").read_text()
    assert not [name for name in (*_sim.LinkOptions.NAMES, *_sim.FlowOptions.NAMES) if f"{name}:" in stub]

"""mm-link's queues for real: what it is told of them, it does. It ignores a name that it does not know."""

import time
from typing import Any

import pytest

from helpers.figures import figures_hold
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.trace import Trace

pytestmark = pytest.mark.mahimahi


def flow(seconds: float, **queue: Any) -> LinkRun:
    """A plain Cubic flow over 12 Mbit/s, where a packet takes a millisecond."""
    with MahimahiLink(LinkSpec(Trace.constant(12, 1), **queue)) as link:
        link.start()
        time.sleep(seconds)
        return link.stop()


@pytest.mark.parametrize("limit", [{"buffer_bytes": 0, "buffer_pkts": 10}, {"buffer_pkts": 20}])
def test_a_limit_in_packets_is_kept(limit: dict[str, int]) -> None:
    assert flow(2.0, **limit).metrics.qdelay_max_ms <= limit["buffer_pkts"] + 2


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ({"queue": "codel", "codel_target_ms": 1000}, {"queue": "codel"}),
        ({"queue": "codel", "codel_interval_ms": 10_000}, {"queue": "codel"}),
        ({"queue": "pie", "pie_reference_ms": 1000}, {"queue": "pie"}),
    ],
)
def test_active_queues_hold_the_queue_short_as_their_parameters_say(
    loose: dict[str, Any], tight: dict[str, Any]
) -> None:
    """Without its drops the queue overflows at 99 packets, with them it stays at a fraction of that."""

    def check(runs: list[LinkRun]) -> None:
        held, full = (done.metrics for done in runs)
        assert held.qdelay_mean_ms < full.qdelay_mean_ms / 1.5
        assert held.throughput_mbps > 8

    figures_hold(
        lambda: [flow(3.0, **tight), flow(3.0, **loose)],
        check,
        lambda runs: [done.invalid_reason for done in runs if done.invalid_reason],
    )


def test_an_infinite_queue_drops_nothing() -> None:
    def check(done: LinkRun) -> None:
        assert done.metrics.qdelay_max_ms > 150

    figures_hold(lambda: flow(3.0, queue="infinite", buffer_bytes=0), check)

"""mm-link's queues for real: what it is told of them, it does. It ignores a name that it does not know."""

import time
from typing import Any

import pytest

from reinet.envs.link.metrics import Metrics
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import MahimahiLink
from reinet.envs.trace import Trace

pytestmark = pytest.mark.mahimahi


def figures(seconds: float = 5.0, **queue: Any) -> Metrics:
    """Of a plain Cubic flow over 12 Mbit/s, where a packet takes a millisecond."""
    with MahimahiLink(LinkSpec(Trace.constant(12, 1), **queue)) as link:
        link.start()
        time.sleep(seconds)
        return link.stop().metrics


def test_a_limit_in_packets_is_kept() -> None:
    assert figures(seconds=2.0, buffer_bytes=0, buffer_pkts=10).qdelay_max_ms <= 12
    assert figures(seconds=2.0, buffer_pkts=20).qdelay_max_ms <= 22


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ({"queue": "codel", "codel_target_ms": 1000, "codel_interval_ms": 2000}, {"queue": "codel"}),
        ({"queue": "codel", "codel_target_ms": 1000}, {"queue": "codel"}),
        ({"queue": "codel", "codel_interval_ms": 10_000}, {"queue": "codel"}),
        ({"queue": "pie", "pie_reference_ms": 1000}, {"queue": "pie"}),
    ],
)
def test_active_queues_hold_the_queue_short_as_their_parameters_say(
    loose: dict[str, Any], tight: dict[str, Any]
) -> None:
    """Without its drops the queue overflows at 99 packets, with them it stays at a fraction of that."""
    held, full = figures(**tight), figures(**loose)
    assert held.qdelay_mean_ms < full.qdelay_mean_ms / 1.5
    assert held.throughput_mbps > 8


def test_an_infinite_queue_drops_nothing() -> None:
    assert figures(seconds=3.0, queue="infinite", buffer_bytes=0).qdelay_max_ms > 150

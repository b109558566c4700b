"""What the kernel environment refuses, before it asks anything of the host, and how long its link's parts wait."""

import re

import pytest

from helpers.places import ROOT
from reinet.core import ConfigError
from reinet.envs.kernel_link import KernelLinkEnv
from reinet.envs.mahimahi import udp_ends
from reinet.envs.mahimahi.process import START_TIMEOUT_S
from reinet.envs.trace import Trace


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target_ms": 21.9}, "1.1 x the path's minimum RTT"),
        ({"target_ms": "+1ms"}, "1.1 x the path's minimum RTT"),
        ({"target_ms": "fast"}, "target 'fast'"),
        ({"cc": "vegas"}, "cannot be capped"),
        ({"episode_s": 0}, "episode_s"),
        ({"mrtt_ms": 7}, "mrtt_ms"),
        ({"mrtt_ms": float("inf")}, "mrtt_ms: inf"),
        ({"head": "nose"}, "head"),
        ({"period": 5}, "period: a PeriodConfig"),
        ({"target_ms": [50]}, "target_ms: a number"),
        ({"random_start": "no"}, "random_start: True or False"),
    ],
)
def test_arguments_are_checked_before_anything_starts(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KernelLinkEnv(Trace.constant(12, 1), **wrong)  # type: ignore[arg-type]


def test_gymnasium_may_hand_on_that_nothing_is_to_be_drawn() -> None:
    assert KernelLinkEnv(render_mode=None).render_mode is None
    with pytest.raises(ConfigError, match="render_mode: KernelLink draws nothing"):
        KernelLinkEnv(render_mode="human")


def test_a_sender_waits_for_its_receiver_as_long_as_who_started_both() -> None:
    """It gave up after 15 s, and the link with it, on a host that brings one up in 20."""
    (accept_ms,) = re.findall(r"#define ACCEPT_MS (\d+)", (ROOT / "envs/mahimahi/helpers/sender.c").read_text())
    assert int(accept_ms) == 1000 * START_TIMEOUT_S == 1000 * udp_ends.WAIT_S


def test_what_is_neither_a_trace_nor_a_path_is_refused_as_by_the_simulated_link() -> None:
    with pytest.raises(ConfigError, match="neither a Trace nor a path"):
        KernelLinkEnv([1, 2])  # type: ignore[arg-type]

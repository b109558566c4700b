"""A path for Mahimahi: what of a ``LinkSpec`` it refuses, and what its programs are told of the rest."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from reinet.core import OPPORTUNITY_BYTES
from reinet.core.errors import ConfigError
from reinet.envs.link.spec import LinkSpec, times_of
from reinet.envs.trace import Trace

EMULATED = (
    "queue", "buffer_bytes", "buffer_pkts", "codel_target_ms", "codel_interval_ms", "pie_reference_ms", "pie_burst_ms",
    "mrtt_ms", "start_offset_ms", "trace", "uplink", "loss", "cc", "target_us",
)  # fmt: skip
"""The fields of a path that this link does; of all others but the seed it does the default, which a host has."""

MIN_BUFFER_PKTS = 2
"""A queue that holds fewer than two full packets never lets a sender fill the link."""

UPLINK_MBPS = 48.0
"""The uplink's rate, at which ACKs meet no congestion: DeepCC's set-up."""


def require_emulated(link: LinkSpec) -> LinkSpec:
    """Returns the same path; raises ConfigError where Mahimahi cannot do it, or would silently do something else."""
    for known in fields(link):
        if known.name in (*EMULATED, "seed"):
            continue
        value = getattr(link, known.name)
        if (tuple(value) if known.default == () else value) != known.default:
            raise ConfigError(
                f"{known.name}: Mahimahi's link has no such thing, only the simulated one (--link sim) has; "
                f"with --link mahimahi there are {', '.join(EMULATED)}"
            )
    if link.mrtt_ms % 2:
        raise ConfigError(
            f"mrtt_ms is {link.mrtt_ms:g}: Mahimahi delays each way by whole milliseconds, so give an even number"
        )
    least_bytes = MIN_BUFFER_PKTS * OPPORTUNITY_BYTES
    if link.queue != "infinite" and link.buffer_bytes and link.buffer_bytes < least_bytes:
        raise ConfigError(f"buffer_bytes is {link.buffer_bytes}; two full packets ({least_bytes}) must fit")
    if link.queue != "infinite" and 0 < link.buffer_pkts < MIN_BUFFER_PKTS:
        raise ConfigError(f"buffer_pkts is {link.buffer_pkts}; {MIN_BUFFER_PKTS} packets must fit")
    return link


def queue_options(link: LinkSpec) -> list[str]:
    """Returns what mm-link is told of the queue in the data's direction; a name that it does not know, it ignores."""
    limits = {"bytes": link.buffer_bytes, "packets": link.buffer_pkts}
    numbers = {name: limit for name, limit in limits.items() if limit}
    if link.queue == "codel":
        numbers |= {"target": link.codel_target_ms, "interval": link.codel_interval_ms}
    elif link.queue == "pie":
        numbers |= {"qdelay_ref": link.pie_reference_ms, "max_burst": link.pie_burst_ms}
    elif link.queue == "infinite":  # takes none
        return ["--downlink-queue=infinite"]
    text = ",".join(f"{name}={number}" for name, number in numbers.items())
    return [f"--downlink-queue={link.queue}", f"--downlink-queue-args={text}"]


def start_ms(link: LinkSpec) -> int:
    """Returns where in the looping trace the path starts: ``start_offset_ms``, inside a loop the next opportunity."""
    times_ms = link.trace_ms.astype(np.int64)
    within_ms = link.start_offset_ms % int(times_ms[-1])
    if not within_ms:
        return link.start_offset_ms
    return link.start_offset_ms - within_ms + int(times_ms[np.searchsorted(times_ms, within_ms)])


def downlink_ms(link: LinkSpec) -> npt.NDArray[np.int64]:
    """Returns the first loop's delivery opportunities in the data's direction, in ms from where the path starts.

    It starts at an opportunity (``start_ms``), so that the loop keeps its length.
    """
    times_ms = link.trace_ms.astype(np.int64)
    return _turned(times_ms, start_ms(link)) if link.start_offset_ms % int(times_ms[-1]) else times_ms


def uplink_ms(link: LinkSpec) -> npt.NDArray[np.int64]:
    """Returns the first loop's delivery opportunities in the ACKs' direction, in ms from where the path starts.

    Mahimahi's loop ends with its last opportunity, so one is added there where the uplink's own has none.
    """
    if link.uplink is None:
        return Trace.constant(UPLINK_MBPS, 1).opportunities_ms.astype(np.int64)
    times_ms = times_of(link.uplink).astype(np.int64)
    if not link.start_offset_ms:
        return times_ms
    turned = _turned(times_ms, start_ms(link))
    return turned if turned[-1] == times_ms[-1] else np.append(turned, times_ms[-1])


def trace_files(link: LinkSpec) -> dict[str, str]:
    """Returns what mm-link reads: its traces of the data's direction, ``down``, and of the other, ``up``."""
    both = (("down", downlink_ms(link)), ("up", uplink_ms(link)))
    return {name: "".join(f"{time_ms}\n" for time_ms in times_ms.tolist()) for name, times_ms in both}


def _turned(times_ms: npt.NDArray[np.int64], begin_ms: int) -> npt.NDArray[np.int64]:
    """Returns a loop's opportunities from that time of it on."""
    loop_ms = int(times_ms[-1])
    return np.sort((times_ms - begin_ms - 1) % loop_ms + 1)

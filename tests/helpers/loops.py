"""A decision loop on a shim in memory."""

import structlog

from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.protocol import Agent
from reinet.core.target import Target
from reinet.kshim.fake import FakeShim

LEASE_MS = 500
QUIET = structlog.wrap_logger(structlog.ReturnLogger())
"""Standard output is the commands' own."""
HEALTHY = {
    "rtt_mean_us": 40_000, "rtt_least_us": 36_000, "rtt_last_us": 40_000, "rtt_samples": 20, "min_rtt_us": 20_000,
    "srtt_us": 40_000, "cwnd_pkts": 60, "mss_bytes": 1448, "delivery_rate_bytes_per_s": 1_448_000,
    "period_ns": 1_000_000_000,
}  # fmt: skip
"""1000 packets/s over 20 ms: the hand rule's product is 20 packets. A queue has stood for the round trip that the
record spans, so the gate is open."""


def started(agent: Agent, *cookies: int, target: str = "50ms") -> tuple[FakeShim, ControlLoop]:
    """A shim with these flows, and a loop that has decided on one healthy record of each."""
    shim = FakeShim()
    made = ControlLoop(shim, agent, Target.parse(target), LEASE_MS, clock_ns=lambda: shim.now_ns, log=QUIET)
    for cookie in cookies or (7,):
        shim.open_flow(cookie)
        shim.feed(cookie, **HEALTHY)
    made.tick()
    return shim, made

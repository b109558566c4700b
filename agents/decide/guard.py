"""The last check before a cap reaches a socket; the rules and their reasons are in ``core/states/guard.hpp``."""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import CapArray, StatsArray
from reinet.agents.decide.verdicts import VERDICT_DTYPE, Verdicts
from reinet.core import MAX_CAP_PKTS
from reinet.core.state import GuardBank


class Guard:
    """Judges the caps of many flows. It looks for the true minimum RTT of long ones behind a queue that does not drain,
    and leaves those alone that wait in a queue of others.
    """

    def __init__(self, ceiling_pkts: int = MAX_CAP_PKTS, bounds_steps: bool = False, looks: bool = True) -> None:
        """Makes a guard; ``bounds_steps`` keeps each cap near the one in force, as the daemon wants it.

        Evaluations do without: there a fixed or a random cap is to be what it says. Without ``looks`` it is the guard
        of a process that caps its own flows, whose looks nobody would share.
        """
        self.flows = GuardBank(ceiling_pkts, bounds_steps, looks)

    def forget(self, slots: NDArray[np.intp], cookies: NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended."""
        self.flows.forget(slots, cookies)

    def judge(
        self, stats: StatsArray, wanted_pkts: CapArray, may_cap: NDArray[np.bool_], aims_at_target: bool = False
    ) -> tuple[CapArray, Verdicts]:
        """Returns the caps that may be applied (N,), 0 = none, and what was said of each, for one record per flow.

        wanted_pkts (N,) is as an agent returned it; may_cap (N,) is False where the flow's gate is closed.
        """
        verdicts = np.empty(len(stats), VERDICT_DTYPE)
        return self.flows.judge(stats, wanted_pkts, may_cap, aims_at_target, verdicts), verdicts

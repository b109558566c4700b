"""What flows to one client know together."""

import ipaddress

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.records import FlowStatsArray, as_bytes


def peer_of(address: str) -> int:
    """Returns what records call a peer of this IP address: ``peer.h``. Raises ValueError for what is none."""
    return _core.peer_of(ipaddress.ip_address(address).packed)


class Peers:
    """What flows of a host know together: ``peers.hpp``. A flow is named by cookie and slot, 0 = no peer."""

    def __init__(self) -> None:
        """Makes one that knows of no flow."""
        self.core = _core.Peers()

    def annotate(self, records: FlowStatsArray) -> None:
        """Takes N records, FLOW_STATS_DTYPE (N,), in their order, and writes into them what others know.

        That is ``peer_delivered_bytes``, the flag COMPANY, and in ``min_rtt_us`` the minimum RTT of another flow that
        waits in the same queue. Nobody else may have seen the records before.
        """
        self.core.annotate(as_bytes(records))

    def forget(self, slots: npt.NDArray[np.intp], cookies: npt.NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended; a socket that connects anew is another flow of that name."""
        self.core.forget(np.asarray(slots, np.int64), np.asarray(cookies, np.uint64))

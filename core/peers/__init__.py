"""What flows to one client know together."""

import ipaddress

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.records import FlowStatsArray, as_bytes

PEER_EVERYBODY = _core.PEER_EVERYBODY

_SPREAD = 0x9E3779B97F4A7C15
"""Times the user's number it keeps the peers of users' programs apart."""


def peer_of(address: str) -> int:
    """Returns what records call a peer of this IP address: ``peer.h``. Raises ValueError for what is none."""
    return _core.peer_of(ipaddress.ip_address(address).packed)


def peers_of_program(peers: npt.NDArray[np.uint64], uid: int) -> npt.NDArray[np.uint64]:
    """Returns other names for the peers (N,) that a program of this user named: they concern no other's flows."""
    named: npt.NDArray[np.uint64] = np.uint64((uid + 1) * _SPREAD % 2**64) ^ peers
    named &= ~np.uint64(_core.PEER_NAMED_BY)
    named |= np.uint64(_core.PEER_OF_PROGRAM)
    return named


class Peers:
    """What flows of a host know together: ``peers.hpp``. A flow is named by cookie and slot, 0 = no peer."""

    def __init__(self, shared_uplink: bool = False) -> None:
        """Makes one that knows of no flow.

        With ``shared_uplink`` all flows share a queue, whoever their peers are; those that programs tell of do not.
        """
        self.core = _core.Peers(shared_uplink)

    def annotate(self, records: FlowStatsArray) -> None:
        """Takes N records, FLOW_STATS_DTYPE (N,), in their order, and writes into them what others know.

        That is ``peer_delivered_bytes``, the flag COMPANY, and in ``min_rtt_us`` the minimum RTT of another flow that
        waits in the same queue. Nobody else may have seen the records before.
        """
        self.core.annotate(as_bytes(records))

    def forget(self, slots: npt.NDArray[np.intp], cookies: npt.NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended; a socket that connects anew is another flow of that name."""
        self.core.forget(np.asarray(slots, np.int64), np.asarray(cookies, np.uint64))

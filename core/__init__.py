"""What several parts share, in C++: records, periods, states, rewards and the simulated link."""

from reinet.core.records import ACK_DTYPE, FLOW_STATS_DTYPE, Flag

__all__ = ["ACK_DTYPE", "FLOW_STATS_DTYPE", "Flag"]

"""The simulator: paths (``path/``), both ends of a TCP connection (``tcp/``), and batches of them stepped together."""

from reinet.envs.sim.batch import SimBatch
from reinet.envs.sim.options import SIM_CONGESTION_CONTROLS

__all__ = ["SIM_CONGESTION_CONTROLS", "SimBatch"]

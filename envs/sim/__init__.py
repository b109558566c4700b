"""The simulator: paths (``path/``), both ends of a TCP connection (``tcp/``), and batches of them stepped together."""

from reinet.envs.sim._sim import opportunities_until
from reinet.envs.sim.batch import SimBatch
from reinet.envs.sim.config import SIM_CONGESTION_CONTROLS, FlowConfig, LinkConfig

__all__ = ["SIM_CONGESTION_CONTROLS", "FlowConfig", "LinkConfig", "SimBatch", "opportunities_until"]

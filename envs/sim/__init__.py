"""The simulator: paths (``path/``), both ends of a TCP connection (``tcp/``), and batches of them stepped together."""

from reinet.envs.sim.batch import SIM_CONGESTION_CONTROLS, FlowConfig, LinkConfig, SimBatch

__all__ = ["SIM_CONGESTION_CONTROLS", "FlowConfig", "LinkConfig", "SimBatch"]

"""A path for the simulator: what of a ``LinkSpec`` it refuses, and the native mirror of the rest (``options.hpp``)."""

from typing import Any

import numpy as np

from reinet.envs.link.spec import LinkSpec, TraceMs, check_choice, times_of
from reinet.envs.sim import _sim

SIM_CONGESTION_CONTROLS: tuple[str, ...] = _sim.CONGESTION_CONTROLS
"""They go by their kernel names where the kernel has them; the list is in congestion_controls.hpp."""


def require_simulated(link: LinkSpec) -> LinkSpec:
    """Returns the same path; raises ConfigError where the simulator cannot do it, naming the field."""
    for flow in link.all_flows():
        check_choice("cc", "the simulator has no congestion control", flow.cc, SIM_CONGESTION_CONTROLS)
    return link


def native_options(link: LinkSpec) -> tuple[_sim.LinkOptions, list[TraceMs], TraceMs]:
    """Returns what the core needs: the path's options, its trace, or in a cell each flow's, and the uplink's, if any.

    Raises ConfigError.
    """
    require_simulated(link)
    flows = list(link.all_flows())
    options = _filled(_sim.LinkOptions(), link)
    uplink_ms = np.empty(0, np.uint32) if link.uplink is None else times_of(link.uplink)
    options.flows = [_filled(_sim.FlowOptions(), flow) for flow in flows]
    return options, [flow.trace_ms for flow in (flows if link.is_cell else flows[:1])], uplink_ms


def _filled(options: Any, spec: object) -> Any:
    """Returns the native options with the fields of the same names; units are the same, C++ converts them."""
    for name in options.NAMES:
        setattr(options, name, getattr(spec, name))
    return options

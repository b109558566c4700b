"""A path for the simulator: what of a ``LinkSpec`` it refuses, and the native mirror of the rest (``options.hpp``)."""

from typing import Any

from reinet.core.errors import ConfigError
from reinet.envs.link.spec import LinkSpec, TraceMs, check_choice
from reinet.envs.sim import _sim

SIM_CONGESTION_CONTROLS: tuple[str, ...] = _sim.CONGESTION_CONTROLS
"""They go by their kernel names where the kernel has them; the list is in congestion_controls.hpp."""


def require_simulated(link: LinkSpec) -> LinkSpec:
    """Returns the same path; raises ConfigError where the simulator cannot do it, naming the field."""
    if link.uplink is not None:
        raise ConfigError(
            "uplink: the simulator has no such thing, only Mahimahi (--link mahimahi) has; its ACKs meet no congestion"
        )
    for flow in link.all_flows():
        check_choice("cc", "the simulator has no congestion control", flow.cc, SIM_CONGESTION_CONTROLS)
    return link


def native_options(link: LinkSpec) -> tuple[_sim.LinkOptions, list[TraceMs]]:
    """Returns what the core needs: the path's options, and its trace, or in a cell each flow's. Raises ConfigError."""
    require_simulated(link)
    flows = list(link.all_flows())
    options = _filled(_sim.LinkOptions(), link)
    options.flows = [_filled(_sim.FlowOptions(), flow) for flow in flows]
    return options, [flow.trace_ms for flow in (flows if link.is_cell else flows[:1])]


def _filled(options: Any, spec: object) -> Any:
    """Returns the native options with the fields of the same names; units are the same, C++ converts them."""
    for name in options.NAMES:
        setattr(options, name, getattr(spec, name))
    return options

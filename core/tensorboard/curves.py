"""The curves of a flow in TensorBoard: their tags, and the panels that they stand in.

The daemon, ``reinet compare`` and ``reinet demo`` write curves of flows under the tags ``<link>/<curve>``, with the
layout made here, and open as the same page: for each link a row of three panels, in each of which the runs (agents, or
the daemon's flows) lie over each other. docs/scalars.md tells the tags.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2

CURVES = (
    ("cap_pkts", "cap_pkts", 1.0),
    ("cwnd_pkts", "cwnd_pkts", 1.0),
    ("rtt_mean_us", "rtt_mean_ms", 1e-3),
    ("min_rtt_us", "min_rtt_ms", 1e-3),
    ("delivery_rate_bytes_per_s", "delivery_rate_mbps", 8e-6),
)
"""(FlowStats field, curve, factor). A cap of 0 is no cap."""
LIVE_LINK = "flow"
"""The link of the daemon's tags: which link a flow on a live host runs over, nobody knows."""
PANELS = (
    ("window (packets)", ("cap_pkts", "cwnd_pkts")),
    ("delay (ms)", ("rtt_mean_ms", "min_rtt_ms", "target_ms")),
    ("rate (Mbit/s)", ("delivery_rate_mbps", "capacity_mbps")),
)
"""(title, curves), from left to right: each curve stands in one panel."""
POINT_INTERVAL_MS = 100
"""A flow has at most one point in this time: ten per second show every outage and cost little."""


def tag(link: str, curve: str) -> str:
    """Returns the tag of a link's curve."""
    return f"{link}/{curve}"


def panels(link: str) -> Any:
    """Returns the category (``layout_pb2.Category``) of a link: its panels, side by side."""
    charts = [
        layout_pb2.Chart(
            title=f"{link}: {title}",
            multiline=layout_pb2.MultilineChartContent(tag=[f"^{re.escape(link)}/({'|'.join(curves)})$"]),
        )
        for title, curves in PANELS
    ]
    return layout_pb2.Category(title=link, chart=charts)


def intervals(title: str, tags: Sequence[str]) -> Any:
    """Returns the category of panels that show a value with its interval: one of each tag."""
    charts = [
        layout_pb2.Chart(title=name, margin=layout_pb2.MarginChartContent(series=[_series(name)])) for name in tags
    ]
    return layout_pb2.Category(title=title, chart=charts)


def layout(categories: Iterable[Any]) -> Any:
    """Returns the page (``layout_pb2.Layout``) that these categories make, from top to bottom."""
    return layout_pb2.Layout(category=list(categories))


def bounds(name: str) -> tuple[str, str]:
    """Returns the tags of the lower and the upper end of a value's interval."""
    return f"{name}/lower", f"{name}/upper"


def _series(name: str) -> Any:
    lower, upper = bounds(name)
    return layout_pb2.MarginChartContent.Series(value=name, lower=lower, upper=upper)

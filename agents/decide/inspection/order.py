"""In which order flows are told of, and which of them where no more than so many are asked for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Rows
from reinet.agents.decide.flows import FlowTable
from reinet.core.errors import ConfigError

Column = Callable[[str], NDArray[Any]]

ORDERS: dict[str, Callable[[Column], NDArray[np.int64]]] = {
    "cap": lambda of: of("caps_pkts").astype(np.int64),
    "cwnd": lambda of: of("cwnd_pkts").astype(np.int64),
    "rtt": lambda of: of("rtt_mean_us").astype(np.int64),
    "queueing": lambda of: of("rtt_mean_us").astype(np.int64) - of("min_rtt_us"),
    "rate": lambda of: np.minimum(of("delivery_rate_bytes_per_s"), 1 << 62).astype(np.int64),
    "age": lambda of: -of("time_ns").astype(np.int64),
}
"""What flows may be sorted by, the largest first."""


class Chosen(NamedTuple):
    """Flows that are to be told of."""

    rows: Rows
    cookies: NDArray[np.uint64]
    """Theirs when they were chosen."""
    live: int
    """How many flows there are in all."""
    next: int
    """After this cookie there are further ones; 0 = there are none."""


def chosen(flows: FlowTable, most: int, order: str, after: int) -> Chosen:
    """Returns at most so many live flows, 0 = all.

    Without an order they come by cookie, those alone that are greater than ``after``: whoever asks again after the last
    one of a page misses none that stayed. Raises ConfigError for an order that is none of ``ORDERS``, or together with
    ``after``. The table's lock is held for no sort and no copy of records: of a million flows either takes a tenth of
    a second, in which nothing would be decided.
    """
    if order and order not in ORDERS:
        raise ConfigError(f"there is no order {order!r:.40}; choose one of {', '.join(ORDERS)}")
    if order and after:
        raise ConfigError("flows beyond a cookie come in the order of cookies; leave the order out")
    with flows.lock:
        rows = flows.live()
        cookies = flows.stats["cookie"][rows]
        keys = -ORDERS[order](lambda name: flows.column(name)[rows]) if order else cookies
    places = np.flatnonzero(cookies > after) if after else np.arange(rows.size)
    kept, further = places, 0 < most < places.size
    if further:  # of a million flows to sort all takes long beside picking those that are wanted
        kept = places[np.sort(np.argpartition(keys[places], most - 1)[:most])]
    kept = kept[np.argsort(keys[kept], kind="stable")]
    return Chosen(rows[kept], cookies[kept], int(rows.size), int(cookies[kept[-1]]) if further and not order else 0)

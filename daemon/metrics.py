"""What the daemon tells Prometheus: counts and distributions over all flows, none of a single flow.

A label per flow would make a time series per connection, which Prometheus keeps for weeks; ``reinet ctl`` and the event
files are for single flows. Every kind is there from the start, at 0, so that rates and alerts are defined.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from reinet.agents.decide.active_policy import PolicyStatus
from reinet.agents.decide.inspection.facts import CAPPED_KIND, KINDS, Distribution
from reinet.core.errors import DaemonError
from reinet.daemon.processes.controlled import Controlled
from reinet.kshim.shim import MOSTS

PREFIX = "reinet_"


class LoopCollector(Collector):
    """Asks the loop at each scrape; ``more`` gives counters of others, by name without prefix and ``_total``."""

    def __init__(self, loop: Controlled, more: Mapping[str, tuple[str, Callable[[], int]]] | None = None) -> None:
        self._loop = loop
        self._more = more or {}

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the registry need not ask the loop when it is made."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yields every metric; of a loop that does not answer that it is not well, and nothing that is not known."""
        status = self._loop.status()
        yield _gauge("healthy", "1 while ticks complete, the agent answers and no problem is known", status.ok)
        try:
            figures, model = self._loop.figures(), self._loop.model()
        except (TimeoutError, DaemonError):  # a counter of 0 would be taken for a new start
            return
        labels = {"version": version("reinet"), "model": model.identity}
        info = GaugeMetricFamily(PREFIX + "daemon_info", "the version and model at work; always 1", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        yield _gauge("paused", "1 while no caps are written on a user's word", status.paused)
        yield _gauge("uptime_seconds", "since the loop's start", status.uptime_s)
        yield _counter("ticks", "completed ticks of the loop", figures.ticks)
        yield _counter("records", "FlowStats records read", status.records)
        yield _counter("decisions", "decisions made", status.decisions)
        yield _counter("stale_records", "records that were too old to decide on", status.stale)
        verdicts = CounterMetricFamily(
            PREFIX + "verdicts", "decisions by what came of them: capped, or why not", labels=["kind"]
        )
        flows = GaugeMetricFamily(PREFIX + "flows", "live flows by kind: capped, or why not", labels=["kind"])
        for kind in KINDS.values():
            flows.add_metric([kind], figures.flows.get(kind, 0))
            verdicts.add_metric([kind], figures.verdicts.get(kind, 0))
        yield verdicts
        yield flows
        yield _gauge("caps_in_force", "flows that have a cap now", figures.flows.get(CAPPED_KIND, 0))
        yield from _policies(status.policies)
        yield _histogram(
            "decision_latency_seconds",
            "from a record's end to just after its cap was stored",
            figures.decision_latency_s,
        )
        yield _histogram("flow_rtt_seconds", "mean RTT of each record", figures.rtt_s)
        yield _histogram(
            "flow_queueing_delay_seconds", "mean RTT of each record above its path's minimum", figures.queueing_delay_s
        )
        yield _histogram(
            "flow_delivery_rate_bytes_per_second", "delivery rate of each record", figures.delivery_rate_bytes_per_s
        )
        shim = CounterMetricFamily(
            PREFIX + "shim_events", "what the kernel side counts, see kshim/slot.h", labels=["event"]
        )
        for event, count in figures.shim.items():
            if event not in MOSTS:
                shim.add_metric([event], count)
        yield shim
        for most in MOSTS:
            meaning = "what of this the kernel side had at the same time, the most since it was loaded"
            yield _gauge(f"flow_{most}_most", meaning, figures.shim.get(most, 0))
        for name, (meaning, read) in self._more.items():
            yield _counter(name, meaning, read())


def _policies(policies: Iterable[PolicyStatus]) -> Iterator[Metric]:
    """Yields what stands of each policy; they are few, and their names the operator's own."""
    stood_down = GaugeMetricFamily(
        PREFIX + "policy_stood_down",
        "1 while a hold-out leaves all flows plain, since capped ones fared worse",
        labels=["policy"],
    )
    quarantined = GaugeMetricFamily(
        PREFIX + "policy_quarantined", "1 while the hand rule decides in the model's place", labels=["policy"]
    )
    for policy in policies:
        stood_down.add_metric([policy.name], float(bool(policy.stood_down)))
        quarantined.add_metric([policy.name], float(bool(policy.quarantined)))
    yield stood_down
    yield quarantined


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value=float(value))


def _counter(name: str, meaning: str, value: int) -> Metric:
    return CounterMetricFamily(PREFIX + name, meaning, value=value)


def _histogram(name: str, meaning: str, found: Distribution) -> Metric:
    cumulative = list(accumulate(int(count) for count in found.counts))
    bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
    return HistogramMetricFamily(
        PREFIX + name, meaning, buckets=list(zip(bounds, cumulative, strict=True)), sum_value=found.total
    )

"""A published law through the gate against the same law over UDP, on the same emulated links."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from reinet.agents.evaluation.ways.comparison import Row, Tell, Ways, figures
from reinet.alcc.launch import Law, Settings
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import Ends, MahimahiLink
from reinet.envs.trace import Trace

WAYS = Ways({"gate": "gate", "udp": "udp"}, of="gate", over="udp", more={"undelivered_pkts": median})


def measure(
    laws: Sequence[str],
    traces: Sequence[Trace],
    *,
    seconds: float,
    repeat: int = 1,
    mrtt_ms: float = LinkSpec.mrtt_ms,
    progress: Tell | None = None,
) -> Iterator[Row]:
    """Yields a row for each run, when it was made.

    ``undelivered_pkts`` came to the link and did not leave it: its queue dropped them, or they were in it at the end.
    ``progress`` is told the row of each, also of those made again. Raises LinkError where a link cannot be made, or
    dies.
    """
    cells = [
        ({"law": law, "trace": trace.name}, partial(_run, LinkSpec(trace, mrtt_ms=mrtt_ms), law, seconds))
        for trace in traces
        for law in laws
    ]
    return WAYS.in_turn(cells, repeat=repeat, progress=progress)


def compared(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each law and trace of such rows of runs: medians and ratios, gate over UDP."""
    return WAYS.summary(runs, ("law", "trace"))


def _run(path: LinkSpec, law: str, seconds: float, way: str) -> Row:
    gate = Settings(law=Law(law), target=Target.parse("+30ms")).variables() if way == "gate" else {}
    with MahimahiLink(path, sender_variables=gate, ends=Ends.over_udp(law) if way == "udp" else None) as link:
        link.start()
        link.go_on(seconds)
        run = link.stop()
    undelivered_pkts = run.log.arrival_ms.size - run.log.departure_ms.size
    return {**figures(run.metrics, run.invalid_reason, run.sender_cpu_us), "undelivered_pkts": undelivered_pkts}

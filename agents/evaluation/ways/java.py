"""The Java client with its learned window against the same client without any, on the same emulated links."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from reinet.agents.evaluation.ways.comparison import Row, Tell, Ways, figures
from reinet.alcc import jvm
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import Ends, MahimahiLink
from reinet.envs.trace import Trace

WAYS = Ways({"none": "plain", "mdi": "mdi"}, of="mdi", over="none")
"""Ways are what stands after --window: plain TCP, and the walk."""


def measure(
    traces: Sequence[Trace],
    *,
    seconds: float,
    repeat: int = 1,
    mrtt_ms: float = LinkSpec.mrtt_ms,
    buffer_bytes: int = LinkSpec.buffer_bytes,
    progress: Tell | None = None,
) -> Iterator[Row]:
    """Yields a row for each run, when it was made.

    ``progress`` is told each run's row, also of those made again. Raises ReinetError without a JDK, LinkError where a
    link cannot be made or dies.
    """
    with tempfile.TemporaryDirectory(prefix="reinet-java-") as folder:
        os.chmod(folder, 0o755)  # the receiver is another user's
        classes = jvm.compile_client(Path(folder))
        cells = [
            ({"trace": trace.name},
             partial(_run, LinkSpec(trace, mrtt_ms=mrtt_ms, buffer_bytes=buffer_bytes), classes, seconds))
            for trace in traces
        ]  # fmt: skip
        yield from WAYS.in_turn(cells, repeat=repeat, progress=progress)


def compared(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each trace of such rows of runs: medians and ratios, mdi over plain."""
    return WAYS.summary(runs, ("trace",))


def _run(path: LinkSpec, classes: Path, seconds: float, way: str) -> Row:
    sender = jvm.command(classes, "LinkEnd", "send", way, path.cc)
    receiver = jvm.command(classes, "LinkEnd", "receive")
    ends = Ends(sender, receiver, (Path(receiver[0]), classes / "reinet" / "alcc" / "LinkEnd.class"))
    with MahimahiLink(path, ends=ends) as link:
        link.start()
        link.go_on(seconds)
        run = link.stop()
    return {**figures(run.metrics, run.invalid_reason, run.sender_cpu_us), "rtt_mean_ms": run.closed[0]["rtt_mean_ms"]}

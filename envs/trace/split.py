"""The division of traces into two sides that share no content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from reinet.core.errors import TraceError
from reinet.envs.trace.trace import Trace


def by_content(traces: Sequence[Trace], share: float) -> tuple[list[Trace], list[Trace]]:
    """Returns that ``share`` of the contents, at least one and not all of them, and the rest.

    Who is where depends on the contents alone, not on names or order; files of the same content stay together. Raises
    TraceError where there is only one content.
    """
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.sha256, []).append(trace)
    if len(groups) < 2:
        raise TraceError("split: all traces have the same content, so whole ones cannot be divided; use --by time")
    # The hash is hashed again: content hashes that someone chose, or a later sort by them, keep no order here.
    order = sorted(groups, key=lambda sha: hashlib.sha256(sha.encode()).hexdigest())
    count = min(max(round(share * len(order)), 1), len(order) - 1)
    return (
        [trace for sha in order[:count] for trace in groups[sha]],
        [trace for sha in order[count:] for trace in groups[sha]],
    )

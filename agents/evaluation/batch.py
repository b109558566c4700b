"""Many simulated links at once under one agent: the figures of each, without records or pictures."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Decider, Mask
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, View
from reinet.agents.decide.verdicts import Verdicts, Why, refused, text
from reinet.core.errors import LinkError
from reinet.core.guard import VERDICT_DTYPE, Guard
from reinet.core.records import FlowStatsArray
from reinet.envs.link.metrics import LinkLog, Metrics, compute
from reinet.envs.link.spec import LinkSpec
from reinet.envs.link.stalls import why_stalled_in
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

Progress = Callable[[float], None]
"""It is told the share of the simulated time that has passed."""
STEPS_BETWEEN_WORDS = 256
"""A step takes some 0.2 ms, so a progress bar moves twenty times a second."""
MOST_ROWS = 48
"""So many links are simulated at once, by whoever asks for ``logs``: those of more would fill gigabytes."""


def batch_seen(view: View, links: Sequence[LinkSpec], **options: Any) -> SimBatch:
    """Returns simulated links whose records and states are those of an agent's view, with other ``options`` of
    ``SimBatch``."""
    return SimBatch(
        list(links),
        view.period,
        view.feature_set,
        normaliser=view.normaliser,
        room_beyond_ms=view.room_beyond_ms,
        **options,
    )


def figures(agent: Agent, links: Sequence[LinkSpec], seconds: float, threads: int = 1) -> list[Metrics]:
    """Returns the figures of one flow per link over its first ``seconds``, decided by ``agent`` behind the guard."""
    return figures_of(logs(agent, links, seconds, threads), links, seconds)


def figures_of(runs: Sequence[dict[str, Any]], links: Sequence[LinkSpec], seconds: float) -> list[Metrics]:
    """Returns the figures of one flow per link from what ``logs`` gave for these links and seconds."""
    return [
        figures_over(link, LinkLog.of_flow(log), _end_ns(link, seconds) / 1e6)
        for log, link in zip(runs, links, strict=True)
    ]


def figures_over(link: LinkSpec, log: LinkLog, end_ms: float) -> Metrics:
    """Returns the figures of a flow over a link up to ``end_ms``; raises LinkError, which names the link's trace: it is
    one of many, as a rule."""
    try:
        return compute(log, link.mrtt_ms, end_ms)
    except LinkError as error:
        name = link.trace.name if isinstance(link.trace, Trace) else "a trace without a name"
        raise LinkError(f"over {name}: {error}") from None


def figures_if_any(agent: Agent, links: Sequence[LinkSpec], seconds: float) -> tuple[list[Metrics | None], int]:
    """Returns the same, None for a flow of which nothing left its link: an outage may last for all of a short run; and
    how many periods all of them lasted."""
    found: list[Metrics | None] = []
    runs = logs(agent, links, seconds)
    for run, link in zip(runs, links, strict=True):
        try:
            found += figures_of([run], [link], seconds)
        except LinkError:
            found.append(None)
    return found, sum(run["periods"] for run in runs)


def logs(
    agent: Agent, links: Sequence[LinkSpec], seconds: float, threads: int = 1, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Returns what each link logged in ``seconds`` or a little more, as ``SimBatch.log`` gives it.

    Beside that stand as "decisions" how often the agent was asked about a flow of it, as "periods" how many there were,
    as "stalled" why its run must not be believed (None = it may), and as "refused_share" and "capped_share" in what
    share of the decisions about its first flow the guard refused a cap, and there was one.

    Every stepped flow of a link is decided for by ``agent`` behind gate and guard, each by its own records.
    """
    sim = batch_seen(agent.view, links, record_log=True, threads=threads)
    agent.bind(sim.clairvoyant_caps)
    end_ns = np.array([_end_ns(link, seconds) for link in links])
    decider = FlowDecider(agent, links, end_ns)
    sim.reset()
    decisions, periods = np.zeros(len(links), np.int64), np.zeros(len(links), np.int64)
    steps = 0
    while np.any(under_way := sim.stats["time_ns"] < end_ns):
        decisions += sim.decided & under_way
        periods += under_way
        sim.step_caps(decider.decide(sim.stats, sim.states, sim.rule_pkts, sim.decided, sim.may_cap))
        steps += 1
        if progress is not None and steps % STEPS_BETWEEN_WORDS == 0:
            left_ns = np.maximum(end_ns - sim.stats["time_ns"].astype(np.int64), 0)
            progress(1 - float(left_ns.max()) / (seconds * 1e9))
    shares = {"refused_share": decider.refused_share, "capped_share": decider.capped_share}
    found = []
    for row, link in enumerate(links):
        log = sim.log(row, end_ns[row] / 1e6)
        log |= {"decisions": int(decisions[row]), "periods": int(periods[row])}
        log |= {"stalled": _why_stalled(log, link, end_ns[row] / 1e6)}
        found.append(log | {key: float(share[row]) for key, share in shares.items()})
    return found


def _why_stalled(log: dict[str, Any], link: LinkSpec, end_ms: float) -> str | None:
    try:
        return why_stalled_in(log, link, link.start_offset_ms, end_ms)
    except LinkError:  # no data came, which whoever computes its figures tells
        return None


def _end_ns(link: LinkSpec, seconds: float) -> int:
    return round((link.start_offset_ms / 1e3 + seconds) * 1e9)


class FlowDecider:
    """A decider for links whose rows tell of several flows in turn: each flow keeps the cap that it got itself.

    Of each link's first flow it remembers what the guard refused up to ``end_ns`` (rows,), for a row that is through
    waits for the others: such a flow runs uncapped, and its figures alone do not tell.
    """

    def __init__(self, agent: Agent, links: Sequence[LinkSpec], end_ns: NDArray[Any]) -> None:
        self._end_ns = end_ns
        self._asked = np.zeros(len(links), np.int64)
        self._refused = np.zeros(len(links), np.int64)
        self._capped = np.zeros(len(links), np.int64)
        self._latest: Verdicts = np.zeros(len(links), VERDICT_DTYPE)
        self._refusal: Verdicts = np.zeros(len(links), VERDICT_DTYPE)
        self._flows = max(1 + len(link.flows) for link in links)
        self._rows = np.arange(len(links))
        self._caps_pkts = np.zeros((len(links), self._flows), np.uint32)
        self._decider = Decider(agent, len(links), Guard())

    def decide(
        self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray, decided: Mask, may_cap: Mask
    ) -> CapArray:
        """Returns the caps in force (rows,) for the flows whose records these are."""
        flow = (stats["cookie"] >> np.uint64(32)).astype(np.intp)
        if decided.any():
            own = stats.copy()
            own["slot"] = self._rows * self._flows + flow  # by which the guard knows flows; a simulation's is the row
            decision = self._decider.ask(own, states, rule_pkts, may_cap, decided)
            self._caps_pkts[self._rows[decided], flow[decided]] = decision.caps_pkts
            first = (flow[decided] == 0) & (stats["time_ns"] < self._end_ns)[decided]
            self._note(self._rows[decided][first], decision.verdicts[first], decision.caps_pkts[first] > 0)
        return np.ascontiguousarray(self._caps_pkts[self._rows, flow])

    @property
    def refused_share(self) -> NDArray[np.float64]:
        """Returns (rows,), the share of the decisions about each first flow in which the guard refused a cap."""
        return self._refused / np.maximum(self._asked, 1)

    @property
    def capped_share(self) -> NDArray[np.float64]:
        """Returns (rows,), the share of those decisions of which a cap came."""
        return self._capped / np.maximum(self._asked, 1)

    def refusals(self) -> list[str | None]:
        """Returns (rows,), as text, why a first flow was refused caps, at any time; None where it was not.

        A closed gate is the usual state of young flows, and counts only where it was the last word.
        """
        told: list[str | None] = []
        for latest, refusal, share in zip(self._latest, self._refusal, self.refused_share, strict=True):
            if share:
                told.append(f"{text(refusal)} ({100 * share:.3g} % of its decisions)")
            else:
                told.append(text(latest) if latest["code"] == Why.NO_QUEUE else None)
        return told

    def _note(self, rows: NDArray[np.intp], verdicts: Verdicts, capped: Mask) -> None:
        codes = verdicts["code"]
        is_refused = (refused(codes) & (codes != Why.NO_QUEUE)) | (codes == Why.OTHERS_QUEUE)
        is_refused &= verdicts["wanted_pkts"] != 0  # who asked for no cap was refused none
        self._asked[rows] += 1
        self._capped[rows] += capped
        self._latest[rows] = verdicts
        self._refused[rows[is_refused]] += 1
        self._refusal[rows[is_refused]] = verdicts[is_refused]

"""Every run of a suite: each has a key of all that shapes it, and belongs to a cell of a scenario's table.

The same key is the same run, wherever it stands; a definition, model or code that changed gives other keys, so what was
stored before is never mixed with it. Runs of one link, repetition and seed differ in the agent alone: they are pairs.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reinet.agents.decide.names import make_agent, refuse_twice
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.batch import MOST_ROWS
from reinet.agents.evaluation.plan import shaped_by
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.suites.definition import ScenarioSpec, Suite
from reinet.agents.evaluation.suites.links import Link, begin, described, links, scenario, together_ms
from reinet.agents.evaluation.suites.provenance import emulator_sha256, versions
from reinet.core.errors import ConfigError
from reinet.envs.link.spec import FurtherFlow, check_choice
from reinet.envs.trace import Trace
from reinet.envs.trace.model import PRESETS

BASELINE = "none"
BLOCK = 5
"""So many repetitions are simulated together: decisions then cost little, and a run that is killed loses little."""

Combination = tuple[Agent, str, int, str | None, str]
"""Agent, congestion control, flows, plain flow beside, role."""


@dataclass(frozen=True)
class Cell:
    """A line of a table: what of a scenario stays the same over traces and repetitions."""

    scenario: str
    agent: str
    cc: str
    point: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    """The swept fields' values, of which some are lists (``wired_mbps``, ``flows``): these have no hash."""
    flows: int = 1
    beside: str | None = None
    role: str = "run"
    """``solo`` for a plain flow that has its queue to itself, so that harm can be told from it: it begins where the one
    beside so many ``flows`` does."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run."""

    key: str
    cell: Cell
    label: str
    scenario: Scenario
    agent: Agent
    repetition: int
    trained_on: bool

    @property
    def own_flows(self) -> list[int]:
        """Returns the places of the path's flows that the agent decides for; any other is a plain one beside them."""
        flows = enumerate(self.scenario.path.all_flows())
        return [place for place, flow in flows if not isinstance(flow, FurtherFlow) or flow.stepped]

    @property
    def pair(self) -> tuple[Any, ...]:
        """Returns what two runs share that differ in agent, congestion control or path alone."""
        path = self.scenario.path
        return (self.scenario.trace.sha256, path.seed, path.start_offset_ms)


@dataclass(frozen=True, eq=False)
class SuitePlan:
    """All runs of a suite with these agents and traces, and in which order they are run."""

    suite: Suite
    jobs: tuple[Job, ...]
    agents: Mapping[str, Agent]
    traces: tuple[Trace, ...]
    generated: bool
    """Whether traces were generated from presets, because none were given."""
    replaced: tuple[str, ...] = ()
    """What the suite's file says of agents and traces and was not run, each as a sentence."""

    @property
    def batches(self) -> list[list[Job]]:
        """Returns the simulated runs that are made together, in the suite's random order.

        What a batch is made of hangs on what was asked for, not on what is stored already: so a run that is resumed has
        the same company.
        """
        groups: dict[tuple[Any, ...], list[Job]] = {}
        for job in unique(self.jobs):
            if job.scenario.link == "sim":
                place = (job.cell.scenario, job.agent.name, job.scenario.seconds, job.repetition // BLOCK)
                groups.setdefault(place, []).append(job)
        batches = [
            group[first : first + MOST_ROWS] for group in groups.values() for first in range(0, len(group), MOST_ROWS)
        ]
        return [batches[place] for place in self._shuffled(len(batches))]

    @property
    def real(self) -> list[Job]:
        """Returns the runs on real kernels, one after the other in the suite's random order."""
        found = [job for job in unique(self.jobs) if job.scenario.link != "sim"]
        return [found[place] for place in self._shuffled(len(found))]

    def _shuffled(self, count: int) -> list[int]:
        return [int(place) for place in np.random.Generator(np.random.PCG64(self.suite.seed)).permutation(count)]


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Returns each run once: several cells may tell of the same one."""
    return list({job.key: job for job in reversed(list(jobs))}.values())[::-1]


def plan(
    suite: Suite,
    given: Sequence[Trace] = (),
    agents: Sequence[str] | None = None,
    repeat: int | None = None,
    allow_training_traces: bool = False,
    link: str | None = None,
    only: Sequence[str] = (),
) -> SuitePlan:
    """Returns every run of a suite. All that can be refused is refused here: ConfigError, TraceError, ModelError.

    ``agents`` stand in for those of every scenario, ``given`` traces for what would be generated, ``repeat`` for the
    scenarios' own. Only scenarios of ``link``, and those named in ``only``, are planned where these are said.
    """
    for name in only:
        check_choice("scenarios", "the suite has no scenario", name, [spec.name for spec in suite.scenarios])
    jobs: list[Job] = []
    made: dict[tuple[str, str], Agent] = {}
    trained: dict[str, set[str]] = {}
    seen: dict[str, Trace] = {}
    asked = [spec for spec in suite.scenarios if link in (None, spec.link) and (not only or spec.name in only)]
    for spec in asked:
        names = tuple(agents) if agents is not None and spec.agents != (BASELINE,) else spec.agents
        found = links(spec, given)
        seen |= {one.trace.sha256: one.trace for one in found}
        for name in dict.fromkeys((*names, BASELINE)):
            if (name, spec.link) not in made:
                made[name, spec.link] = make_agent(name, link=spec.link)
            agent = made[name, spec.link]
            trained.setdefault(agent.name, set())
            trained[agent.name] |= shaped_by(agent, [one.trace for one in found], allow_training_traces)
        asked_for = [made[name, spec.link] for name in names]
        refuse_twice(asked_for)
        runs = _combinations(spec, asked_for, made[BASELINE, spec.link])
        for repetition in range(repeat or spec.repeat):
            for one in found:
                jobs += _jobs(suite, spec, one, repetition, runs, trained)
    if not asked:
        raise ConfigError(f"suite {suite.name}: none of the scenarios that were asked for runs on --link {link}")
    if not jobs:
        raise ConfigError(f"suite {suite.name}: its scenarios name no traces; give some in `traces`")
    presets = list(dict.fromkeys(text for spec in asked for text in spec.traces if text in PRESETS))
    run = ", ".join(spec.name for spec in asked)
    if given and not presets:
        raise ConfigError(
            f"traces: {run} of suite {suite.name} generates no link that they would replace; leave them out"
        )
    if agents is not None and all(spec.agents == (BASELINE,) for spec in asked):
        raise ConfigError(f"agents: {run} of suite {suite.name} runs plain congestion controls alone; leave them out")
    return SuitePlan(
        suite, tuple(jobs), {agent.name: agent for agent in made.values()}, tuple(seen.values()),
        generated=bool(presets) and not given, replaced=tuple(_replaced(asked, presets, given, agents)),
    )  # fmt: skip


def _jobs(
    suite: Suite,
    spec: ScenarioSpec,
    link: Link,
    repetition: int,
    runs: Sequence[Combination],
    trained: Mapping[str, set[str]],
) -> Iterator[Job]:
    """Yields the runs of a link and repetition, which share seed and start; ``trained`` has by agent what shaped it."""
    seed, start_ms = begin(suite.seed, spec, link.trace, repetition)
    for agent, cc, flows, beside, role in runs:
        alone = role == "solo"
        try:
            path = scenario(spec, link, cc, seed=seed, start_ms=start_ms, flows=flows, beside=beside, alone=alone)
        except ConfigError as error:
            raise ConfigError(f"suite {suite.name}, scenario {spec.name}: {error}") from error
        yield Job(
            key=_key(agent, path),
            cell=Cell(spec.name, agent.name, cc, tuple(link.point.items()), flows, beside, role),
            label=link.label,
            scenario=path,
            agent=agent,
            repetition=repetition,
            trained_on=link.trace.sha256 in trained[agent.name],
        )


def _replaced(
    asked: Sequence[ScenarioSpec], presets: Sequence[str], given: Sequence[Trace], agents: Sequence[str] | None
) -> Iterator[str]:
    """Yields a sentence for each of agents and traces where others than the file's were run."""
    own = dict.fromkeys(name for spec in asked if spec.agents != (BASELINE,) for name in spec.agents)
    if agents is not None and own and list(own) != list(agents):
        yield f"The agents {', '.join(agents)} were run in place of {', '.join(own)}."
    if given and presets:
        names = ", ".join(trace.name for trace in given)
        yield f"The traces {names} were run in place of those generated from {', '.join(presets)}."


def _combinations(spec: ScenarioSpec, agents: Sequence[Agent], baseline: Agent) -> list[Combination]:
    """Returns every run of a link and repetition."""
    pairs = [(agent, cc) for cc in spec.cc for agent in agents]
    pairs += [(baseline, cc) for cc in spec.plain if (baseline, cc) not in pairs]
    found: list[Combination] = [
        (agent, cc, flows, beside, "run")
        for agent, cc in pairs
        for flows in spec.flows
        for beside in (spec.beside or (None,))
    ]
    return found + [(baseline, cc, flows, None, "solo") for cc in spec.beside for flows in spec.flows]


def _key(agent: Agent, path: Scenario) -> str:
    """Returns the hash of all that shapes a run."""
    said = {
        "agent": agent.identity,
        "link": path.link,
        "seconds": path.seconds,
        "target": str(path.target),
        "together_ms": together_ms(path.path),
        "path": described(path.path),
        "code_sha256": versions()["code_sha256"],
    }
    if path.link != "sim":
        said |= {"kernel": versions()["kernel"], "emulator_sha256": emulator_sha256()}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

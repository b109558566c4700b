"""Every combination of agent, scenario and repetition: refused as a whole before the first run, or run in turn."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reinet.agents.decide.names import make_agent, make_agents, split_names
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.run import Run, require_caps, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.model.artifact import used_traces
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace


class Plan:
    """Every combination of agent, scenario and repetition; iterating runs them one by one.

    The agents are made, and everything that can be refused is refused, before the first run. Each repetition of a
    simulated scenario has a seed of its own, the first one the scenario's: agents of a repetition share it. An agent
    that throws dice has it too, on a real link as well: its repetitions are no copies of the first.
    """

    def __init__(
        self, agents: str, scenarios: Sequence[Scenario], repeat: int = 1, allow_training_traces: bool = False
    ) -> None:
        (link,) = {scenario.require_data().link for scenario in scenarios}
        self.agents = make_agents(split_names(agents), link, scenarios[0].path.seed)
        for scenario in {(one.path.cc, one.actuator): one for one in scenarios}.values():
            for agent in self.agents:
                require_caps(agent, scenario)
        self._again = [[agent] for agent in self.agents]  # (agents, repetitions)
        for own, name in zip(self._again, split_names(agents), strict=True):
            dices = own[0].manifest is None  # a model has none, and is not loaded once more
            own += [make_agent(name, link, scenarios[0].path.seed + n) if dices else own[0] for n in range(1, repeat)]
        self._repetitions = [[_again(scenario, number) for number in range(repeat)] for scenario in scenarios]
        traces = [scenario.trace for scenario in scenarios]
        self._trained_on = {agent.name: shaped_by(agent, traces, allow_training_traces) for agent in self.agents}
        self.progress: Callable[[float], None] | None = None
        """It is told the seconds that have passed of the present run."""

    def __len__(self) -> int:
        """Returns how many runs there are."""
        return len(self._jobs())

    def name_of(self, number: int) -> str:
        """Returns what tells the run of that number from others, for an error."""
        _, scenario, agent = self._jobs()[number]
        return f"{agent.name} over {scenario.path.cc} on {scenario.trace.name}"

    def __iter__(self) -> Iterator[tuple[Run, dict[str, object]]]:
        """Runs each in turn; yields the run and its row."""
        for repetition, scenario, agent in self._jobs():
            done = run(agent, scenario, self.progress)
            trained_on = scenario.trace.sha256 in self._trained_on[agent.name]
            yield done, {**done.row(), "repetition": repetition, "trained_on": trained_on}

    def _jobs(self) -> list[tuple[int, Scenario, Agent]]:
        return [
            (number, scenario, own[number])
            for repetitions in self._repetitions
            for number, scenario in enumerate(repetitions)  # agents next to each other in time: the host's load drifts
            for own in self._again
        ]


def _again(scenario: Scenario, number: int) -> Scenario:
    """Returns a scenario's repetition of that number; a real host's noise has no seed."""
    if scenario.link != "sim" or number == 0:
        return scenario
    return replace(scenario, path=replace(scenario.path, seed=scenario.path.seed + number))


def trained_on(agents: Sequence[Agent], traces: Sequence[Trace], allow: bool) -> dict[str, list[str]]:
    """Returns by agent the names of the traces that shaped it; raises ConfigError as ``shaped_by`` does."""
    found = {agent.name: shaped_by(agent, traces, allow) for agent in agents}
    return {name: [trace.name for trace in traces if trace.sha256 in seen] for name, seen in found.items() if seen}


def labelled(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns by agent the names of the traces, each once, of those rows that are labelled ``trained_on``."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["trained_on"]:
            found.setdefault(str(row["agent"]), {})[str(row["trace"])] = None
    return {agent: list(names) for agent, names in found.items()}


def training_notes(seen: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a sentence for each agent that was shaped by traces it is judged on: a table of figures does not tell."""
    return [
        f"{agent} was trained on, or selected by, {', '.join(names)}: its figures there do not tell what it does on "
        "links that it has not seen."
        for agent, names in seen.items()
    ]


def shaped_by(agent: Agent, traces: Sequence[Trace], allow: bool) -> set[str]:
    """Returns the hashes of the traces that shaped a model; raises ConfigError for any, unless that was allowed."""
    found = used_traces(agent.trace_uses, [(trace.name, trace.sha256) for trace in traces])
    if found and not allow:
        name, use = found[0]
        raise ConfigError(
            f"agent {agent.name}: trace {name} has the content of {use.name}, which the model was "
            f"{'trained' if use.role == 'train' else 'selected'} on; evaluate on other traces, or say "
            "--allow-training-traces and have the rows labelled"
        )
    return {use.sha256 for _, use in found}

"""The runs of a comparison: each agent over all links at once."""

from collections.abc import Callable, Mapping, Sequence

from reinet.agents.decide.names import make_agent, place_of
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.compare.learning import Curves
from reinet.agents.evaluation.compare.page import Content
from reinet.agents.evaluation.plan import labelled, shaped_by
from reinet.agents.evaluation.run import Run, simulate
from reinet.agents.evaluation.scenario import Scenario


class Comparison:
    """Agents over simulated links; what can be refused is refused before the first run."""

    def __init__(
        self,
        models: Sequence[str],
        others: Sequence[str],
        scenarios: Sequence[Scenario],
        allow_training_traces: bool = False,
    ) -> None:
        """Takes agents by their names; of two that are the same (rule, rule:1.5; one folder by two paths) the first
        stays. Raises ConfigError."""
        first: dict[str, Agent] = {}
        for agent in (make_agent(name) for name in (*models, *others)):
            first.setdefault(place_of(agent), agent)
        self.agents = list(first.values())
        self._scenarios = scenarios
        traces = [scenario.require_data().trace for scenario in scenarios]
        self._trained_on = {agent.name: shaped_by(agent, traces, allow_training_traces) for agent in self.agents}
        self._runs: list[Run] = []
        self._rows: list[dict[str, object]] = []

    def run(self, agent: Agent, progress: Callable[[float], None] | None = None) -> list[dict[str, object]]:
        """Runs one of the agents over all links; returns the rows, as ``reinet evaluate`` has them."""
        # What draws for all links of a batch at once gives each, alone, the caps that reinet evaluate gives it.
        together = [[one] for one in self._scenarios] if agent.draws else [self._scenarios]
        done = [run for scenarios in together for run in simulate(agent, scenarios, progress)]
        self._runs += done
        rows = [
            {
                **run.row(),
                "repetition": 0,
                "trained_on": run.scenario.trace.sha256 in self._trained_on[agent.name],
            }
            for run in done
        ]
        self._rows += rows
        return rows

    def content(self, learning: Mapping[str, Curves]) -> Content:
        """Returns what the page shows of the runs so far, with these evaluation curves."""
        manifests = {agent.name: agent.manifest for agent in self.agents if agent.manifest is not None}
        return Content(self._runs, manifests, learning, labelled(self._rows))

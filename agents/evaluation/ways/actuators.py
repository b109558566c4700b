"""An agent through the gate against the same agent in the kernel, and both against no cap, on the same links."""

from collections.abc import Iterator, Sequence
from functools import partial

from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.run import run
from reinet.agents.evaluation.scenario import Actuator, Scenario
from reinet.agents.evaluation.ways.comparison import Row, Tell, Ways, figures
from reinet.core.target import Target
from reinet.envs.trace import Trace

WAYS = Ways({"none": "plain", "kernel": "kernel", "gate": "gate"}, of="gate", over="kernel")
TARGET = Target.parse("50ms")
"""``reinet evaluate``'s own."""


def measure(
    agents: Sequence[str],
    traces: Sequence[Trace],
    *,
    seconds: float,
    repeat: int = 1,
    cc: str = "cubic",
    target: Target = TARGET,
    progress: Tell | None = None,
) -> Iterator[Row]:
    """Yields a row for each run, when it was made.

    Raises ReinetError for an agent that does not run in a process, LinkError or ShimError where the host lacks
    something.
    """
    plain = make_agent("none", "mahimahi")
    cells = []
    for trace in traces:
        for name in agents:
            agent = make_agent(name, "mahimahi")
            agent.law_of_the_gate()  # refused before the first link
            scenarios = {way: Scenario.of(trace, "mahimahi", seconds=seconds, target=target, cc=cc, actuator=actuator)
                         for way, actuator in _ACTUATORS.items()}  # fmt: skip
            cells.append(({"agent": name, "trace": trace.name}, partial(_run, plain, agent, scenarios)))
    return WAYS.in_turn(cells, repeat=repeat, progress=progress)


def compared(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each agent and trace of such rows of runs: medians and ratios, gate over kernel."""
    return [with_share(row) for row in WAYS.summary(runs, ("agent", "trace"))]


_ACTUATORS: dict[str, Actuator] = {"none": "kernel", "kernel": "kernel", "gate": "app"}


def _run(plain: Agent, agent: Agent, scenarios: dict[str, Scenario], way: str) -> Row:
    done = run(plain if way == "none" else agent, scenarios[way])
    return figures(done.metrics, done.invalid_reason, done.sender_cpu_us)


def with_share(row: Row) -> Row:
    """Returns a row of the summary with ``reduction_share`` and ``cpu_over_plain``.

    The one is the queueing delay that the gate takes from plain, over what the cap in the kernel takes, None where that
    takes nothing; the other the sender's CPU time, gate over plain.
    """
    plain_ms, kernel_ms, gate_ms = (row[f"{name}_qdelay_mean_ms"] for name in WAYS.names.values())
    saved_ms = plain_ms - kernel_ms
    plain_cpu_s = row["plain_cpu_s"]
    return {
        **row,
        "reduction_share": (plain_ms - gate_ms) / saved_ms if saved_ms > 0 else None,
        "cpu_over_plain": row["gate_cpu_s"] / plain_cpu_s if plain_cpu_s else None,
    }

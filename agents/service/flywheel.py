"""What it costs to learn from estimated traces in place of true ones: the circle of recordings, in the simulator.

known traces -> a flow over each, under the present model -> records, as a daemon keeps them -> estimated traces
     |                                                                                               |
     +-> a policy for each seed                      a policy for each seed <------------------------+
                 \\                                        /
                  both over held-out links: throughput, queueing delay
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.decide.names import make_agent
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.batch import figures
from reinet.agents.evaluation.run import simulate
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export
from reinet.agents.learn.train import train
from reinet.agents.service.gate import LEAST_DELAY_MS
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace
from reinet.envs.trace.estimate import Estimate, estimates
from reinet.envs.trace.estimated_set import LEAST_MEASURED, SET_FILE, save, write_set
from reinet.envs.trace.model import generate
from reinet.envs.trace.trace import PKTS_PER_MBIT
from reinet.kshim.recorded import RecordArray, kept

PRESETS = ("lte-driving", "lte-walking", "lte-stationary", "random")
"""The kinds of link, in turn; umts and evdo are among the random ones, as in ``configs/default.toml``."""
MRTTS_MS = (20.0, 40.0, 80.0)
"""The recorded flows' paths, in turn: a server's clients are near and far."""
RECORDED_SEED, HELD_OUT_SEED = 70_000, 90_000
"""Far from the seeds that configurations draw their traces from."""
SELECT_SHARE, SELECT_S = 0.05, 5.0
"""Nothing is chosen among the checkpoints of ``configs/default.toml``, which evaluates once, at its end: one trace in
twenty for five seconds is enough, where the swept rule that it is judged by would take longer than the training."""
MOST_DELAY, LEAST_THROUGHPUT = 1.10, 0.98
"""What a policy from estimates may have beside one from the true traces."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class RateError:
    """How far an estimate is from the trace behind it, in bins of a length, as shares of the trace's mean rate."""

    bin_ms: int
    mean_share: float
    """The estimate's mean rate over the trace's, less 1."""
    absolute_share: float
    """The mean of the bins' absolute differences."""
    rms_share: float


def recorded(agent: Agent, traces: Sequence[Trace], seconds: float, **said: Any) -> list[RecordArray]:
    """Returns what a daemon would have recorded of one flow over each trace, under an agent.

    ``said`` is what ``Scenario.of`` takes beside that.
    """
    scenarios = [
        Scenario.of(trace, "sim", seconds=seconds, target="+30ms", mrtt_ms=MRTTS_MS[i % len(MRTTS_MS)], **said)
        for i, trace in enumerate(traces)
    ]
    return [kept(run.records, 0) for run in simulate(agent, scenarios)]


def rate_error(estimate: Estimate, trace: Trace, mrtt_ms: float, bin_ms: int) -> RateError:
    """Returns how far an estimate is from the trace behind it; its flow's times count from the trace's start.

    What the link delivers is acknowledged half a round trip later.
    """
    start_ms, length_ms = estimate.start_ms - mrtt_ms / 2, estimate.trace.duration_ms
    true = _binned(trace.opportunities_ms.astype(np.float64) - start_ms, length_ms, bin_ms)
    seen = _binned(estimate.trace.opportunities_ms.astype(np.float64), length_ms, bin_ms)
    mean = max(float(true.mean()), 1e-9)
    return RateError(
        bin_ms,
        float(seen.mean() / mean - 1),
        float(np.abs(seen - true).mean() / mean),
        float(np.sqrt(np.square(seen - true).mean()) / mean),
    )


def _binned(times_ms: np.ndarray[Any, np.dtype[np.float64]], length_ms: int, bin_ms: int) -> Any:
    """Returns the rate in Mbit/s in each whole bin; an opportunity at a bin's end is the bin's."""
    count = length_ms // bin_ms
    inside = times_ms[(times_ms > 0) & (times_ms <= count * bin_ms)]
    bins = np.ceil(inside / bin_ms).astype(np.int64) - 1
    return np.bincount(bins, minlength=count) / (bin_ms / 1000) / PKTS_PER_MBIT


def measure(
    config: TrainConfig,
    present: str,
    folder: Path,
    traces: int,
    links: int,
    seeds: int,
    seconds: float,
    told: Told = lambda _what: None,
) -> dict[str, Any]:
    """Returns the comparison as JSON has it: ``rows`` per link, ``errors`` of the estimates, and the ratios.

    ``present`` is who caps the recorded flows. What was trained in ``folder`` is taken up again. Raises ReinetError.
    """
    if traces < 4:
        raise ConfigError(f"--traces {traces}: 4 are the least, of which one is kept to choose among checkpoints by")
    known = [generate(PRESETS[i % len(PRESETS)], seconds, RECORDED_SEED + i) for i in range(traces)]
    told(f"recording {traces} flows of {seconds:g} s")
    found, errors = _estimated(known, recorded(make_agent(present, "sim"), known, seconds))
    save(found, folder / "estimated", overwrite=True)
    (folder / "true").mkdir(exist_ok=True)
    names = [trace.save(folder / "true" / f"{trace.name}.trace", overwrite=True).name for trace in known]
    sets = {"true": write_set(folder / "true" / "true.toml", names), "estimated": folder / "estimated" / SET_FILE}
    held_out = [generate(PRESETS[i % len(PRESETS)], seconds, HELD_OUT_SEED + i) for i in range(links)]
    paths = [
        Scenario.of(trace, "sim", cc="cubic", target="+30ms", mrtt_ms=MRTTS_MS[i % len(MRTTS_MS)]).path
        for i, trace in enumerate(held_out)
    ]
    measured: dict[str, list[list[Any]]] = {"true": [], "estimated": []}
    for seed in range(1, seeds + 1):
        for side in measured:
            told(f"training on {side} traces, seed {seed} of {seeds}")
            model = _trained(config, folder, sets[side], seed)
            measured[side].append(figures(Policy.load(model), paths, seconds, os.cpu_count() or 1))
    rows = [_row(i, held_out[i], measured) for i in range(links)]
    ratios = {key: float(np.exp(np.mean(np.log([row[key] for row in rows])))) for key in ("delay", "throughput")}
    return {
        "rows": rows,
        "errors": errors,
        "delay": ratios["delay"],
        "throughput": ratios["throughput"],
        "delay_worst": max(row["delay"] for row in rows),
        "throughput_worst": min(row["throughput"] for row in rows),
        "holds": ratios["delay"] <= MOST_DELAY and ratios["throughput"] >= LEAST_THROUGHPUT,
        "traces": traces,
        "estimates": len(found),
        "seeds": seeds,
        "seconds": seconds,
        "iterations": config.run.iterations,
    }


def _estimated(traces: Sequence[Trace], flows: Sequence[RecordArray]) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """Returns what is estimated of recorded flows, one over each trace, and how far that is from the traces."""
    found: list[Estimate] = []
    errors: list[dict[str, Any]] = []
    for number, (trace, records) in enumerate(zip(traces, flows, strict=True)):
        mine = [one for one in estimates(records, f"flow-{number}") if one.measured_share >= LEAST_MEASURED]
        found += mine
        for one in mine:
            for bin_ms in (100, 1000):
                error = rate_error(one, trace, MRTTS_MS[number % len(MRTTS_MS)], bin_ms)
                errors.append({"of": trace.name, **one.row(), **error.__dict__})
    return found, errors


def _trained(config: TrainConfig, folder: Path, side: Path, seed: int) -> Path:
    """Returns the model that learned from one side's set of traces, without Ray, on as many links."""
    name = f"{side.stem}-{seed}"
    section = config.traces.model_copy(update={"presets": [], "sets": []}).model_dump()
    section |= {"sets": [{"path": str(side)}], "select_share": SELECT_SHARE}
    rollout, run = config.rollout, config.run.model_copy(update={"evaluate_s": SELECT_S})
    if rollout.workers:
        rollout = rollout.model_copy(update={"workers": 0, "links": rollout.links * rollout.workers})
    own = TrainConfig.model_validate(
        {**config.model_dump(), "name": name, "seed": seed, "traces": section, "rollout": rollout.model_dump(),
         "run": run.model_dump()}
    )  # fmt: skip
    result = train(own, folder / "runs" / name).undisturbed()
    if result.best is None:
        raise ConfigError("[run] evaluate_every: no evaluation came about, so there is no best checkpoint")
    model = folder / "models" / name
    export(result.best, model)
    return model


def _row(link: int, trace: Trace, measured: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """Returns one link's medians over seeds, and their ratios."""
    row: dict[str, Any] = {"link": trace.name, "mrtt_ms": MRTTS_MS[link % len(MRTTS_MS)]}
    for side, runs in measured.items():
        row[f"throughput_mbps_{side}"] = float(np.median([run[link].throughput_mbps for run in runs]))
        row[f"qdelay_mean_ms_{side}"] = float(np.median([run[link].qdelay_mean_ms for run in runs]))
    delay_ms = [max(row[f"qdelay_mean_ms_{side}"], LEAST_DELAY_MS) for side in ("estimated", "true")]
    row["delay"] = delay_ms[0] / delay_ms[1]
    row["throughput"] = row["throughput_mbps_estimated"] / max(row["throughput_mbps_true"], 1e-9)
    return row

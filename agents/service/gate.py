"""The gate: a model measured beside what a name points to, on the same links, before the name moves to it.

A process of its own, ``python -m reinet.agents.service.gate REQUEST VERDICT``: measuring takes minutes, and the service
answers meanwhile. Runs are kept by their key (``agents/evaluation/suites/store.py``), so the present model is measured
once.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.decide.protocol import MODEL_IDENTITY
from reinet.agents.evaluation import no_harm
from reinet.agents.service import files
from reinet.agents.service.config import Gate
from reinet.core.errors import ReinetError

LEAST_DELAY_MS = 0.1
"""Queueing delays below count as this: a ratio of two that are nothing says nothing."""
SUITE = "suite/"
"""So begin the names of what the suite measured of a model: it has them beside the figures of its training."""
OF_A_PAIR = ("scenario", "cc", "point", "flows", "beside", "trace_sha256", "seed", "start_offset_ms")
"""What two runs share that differ in the agent alone, by the keys of a report's rows."""
SHOWN = ("throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms")
NICE = 10
"""The gate may wait for trainings; nobody's packets wait for it."""


@dataclass(frozen=True)
class Verdict:
    """What the gate found."""

    ok: bool
    words: str
    throughput: float = 1.0
    """The candidate's over the present model's: the mean over links and repetitions, geometric."""
    delay: float = 1.0
    """The same of queueing delay."""
    runs: int = 0
    candidate: dict[str, float] = field(default_factory=dict)
    """The candidate's own figures of the suite, as ``suite_figures`` gives them; empty where there are none."""
    present: dict[str, float] = field(default_factory=dict)
    """The same of the present model, where there is one."""


def judged(rows: list[dict[str, Any]], candidate: str, present: str, gate: Gate) -> Verdict:
    """Returns the verdict of a report's rows; ``candidate`` and ``present`` are agents' names in it."""
    ours, theirs = (
        {
            json.dumps([row[key] for key in OF_A_PAIR], sort_keys=True): row
            for row in rows
            if row["agent"] == agent and row["role"] == "run"
        }
        for agent in (candidate, present)
    )
    pairs = [(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()]
    if not pairs:
        return Verdict(False, "the suite has no runs that both models share; see [trainer.gate]")
    if lost := len(theirs.keys() - ours.keys()):  # of its ratios these would have been the worst
        return Verdict(False, f"in {lost} of {len(theirs)} runs nothing came through under it, where it did before")
    throughput = np.exp(np.mean([np.log(a["throughput_mbps"] / b["throughput_mbps"]) for a, b in pairs]))
    delays = [[max(side["qdelay_mean_ms"], LEAST_DELAY_MS) for side in pair] for pair in pairs]
    delay = np.exp(np.mean([np.log(a / b) for a, b in delays]))
    ok = bool(throughput >= gate.least_throughput and delay <= gate.most_delay)
    words = (
        f"{100 * throughput:.1f} % of the throughput and {100 * delay:.1f} % of the queueing delay of "
        f"{'what was there' if present != 'none' else 'no cap'}, {len(pairs)} runs"
    )
    if not ok:
        words += f"; at least {100 * gate.least_throughput:g} % and at most {100 * gate.most_delay:g} % are asked for"
    return Verdict(ok, words, float(throughput), float(delay), len(pairs))


def suite_figures(rows: list[dict[str, Any]], agent: str, plain: str, gate: Gate) -> dict[str, float]:
    """Returns a model's figures in a report's rows: means over its runs, and the ratios to ``plain``, the agent that
    caps nothing, as in a verdict; empty where it has no run."""
    own = [row for row in rows if row["agent"] == agent and row["role"] == "run"]
    if not own:
        return {}
    found = {key: float(np.mean([row[key] for row in own])) for key in SHOWN} | {"runs": float(len(own))}
    beside = judged(rows, agent, plain, gate)
    if beside.runs:
        found |= {"throughput_ratio": beside.throughput, "qdelay_ratio": beside.delay}
    return {f"{SUITE}{key}": value for key, value in found.items()}


def measure(request: dict[str, Any]) -> Verdict:
    """Runs the suite with both models; returns the verdict. Raises ReinetError where it cannot be run."""
    from reinet.agents.decide.policy import Policy
    from reinet.agents.evaluation.suites import report
    from reinet.agents.evaluation.suites.definition import load
    from reinet.agents.evaluation.suites.plan import BASELINE, plan
    from reinet.agents.evaluation.suites.runner import make
    from reinet.agents.evaluation.suites.store import Store
    from reinet.envs.trace import load_traces

    gate = Gate.model_validate(request["gate"])
    candidate, present = request["candidate"], request["present"] or BASELINE
    suite = load(gate.suite)
    made = plan(
        suite,
        given=load_traces(gate.traces) if gate.traces else (),
        agents=list(dict.fromkeys([BASELINE, present, candidate])),
        repeat=gate.repeat,
        only=gate.scenarios,
    )
    names = {agent.identity.removeprefix(MODEL_IDENTITY): agent.name for agent in made.agents.values()}
    with Store.locked(Path(request["store"])) as store:
        outcome = make(made, store, os.cpu_count() or 1, lambda _s, what: print(_short(what, names), flush=True))
        found = report.build(made, store, "gate", outcome.failed)

    def called(folder: str) -> str:
        """Returns a model's name in the report; one that no scenario of the suite runs has no rows there."""
        return names.get(Path(folder).name, folder)

    capped = {(scenario.name, cc) for scenario in suite.scenarios for cc in scenario.cc}
    # What runs plain alone has no pair, and is not lost for that.
    rows = [row for row in found["rows"] if (row["scenario"], row["cc"]) in capped]
    own = suite_figures(rows, called(candidate), BASELINE, gate)
    if present == BASELINE:
        verdict = judged(rows, called(candidate), BASELINE, gate)
        words = f"the name points to nothing yet; {verdict.words.partition(';')[0]}"
        verdict = replace(verdict, ok=True, words=words, candidate=own)
    else:
        verdict = judged(rows, called(candidate), called(present), gate)
        verdict = replace(verdict, candidate=own, present=suite_figures(rows, called(present), BASELINE, gate))
    if not gate.no_harm.repeat:
        return verdict
    print("short transfers, beside none capped", flush=True)
    policy = Policy.load(Path(candidate))
    return with_harm(verdict, no_harm.measure(policy, policy.manifest.congestion_controls, gate.no_harm))


def with_harm(verdict: Verdict, harm: no_harm.Harm) -> Verdict:
    """Returns the verdict of both: a model that slows short transfers is refused, however well long ones do."""
    return replace(verdict, ok=verdict.ok and harm.ok, words=f"{verdict.words}; {harm.words}")


def _short(what: str, names: dict[str, str]) -> str:
    """Returns what is being run, models by their digests: a client has no business with this host's paths."""
    for digest, name in names.items():
        what = what.replace(name, digest[:12])
    return what


def main(request: Path, verdict: Path) -> int:
    """Measures what a request's file says and writes the verdict."""
    os.nice(NICE)
    try:
        found = measure(json.loads(request.read_bytes()))
    except ReinetError as error:
        found = Verdict(False, str(error))
    files.write_json(verdict, asdict(found))
    return 0


async def ask(gate: Gate, folder: Path, candidate: Path, present: Path | None) -> AsyncGenerator[str | Verdict, None]:
    """Runs the gate in a process; yields what is being measured, and the verdict last.

    A gate that comes to no end, or to no figures, lets nothing through: that is a verdict too, which may be overruled.
    The process ends with whoever waits for it.
    """
    place = folder / "gate"
    place.mkdir(exist_ok=True, mode=0o700)
    name = os.urandom(6).hex()
    request, verdict = place / f"{name}.request", place / f"{name}.verdict"
    end_s = time.monotonic() + 60 * gate.minutes
    process = None
    try:
        files.write_json(request, {
            "gate": gate.model_dump(mode="json"), "candidate": str(candidate), "present": str(present or ""),
            "store": str(place / "runs"),
        })  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reinet.agents.service.gate", str(request), str(verdict),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        stderr = asyncio.ensure_future(process.stderr.read())
        while line := await asyncio.wait_for(process.stdout.readline(), max(end_s - time.monotonic(), 0.001)):
            yield line.decode("utf-8", "replace").strip()
        code = await process.wait()
        if code != 0 or (found := files.read_json(verdict)) is None:
            last = (await stderr).decode("utf-8", "replace").strip().rpartition("\n")[2]
            yield Verdict(False, f"the gate could not measure: {last[-500:] or f'it ended with {code}'}")
        else:
            yield Verdict(**found)
    except asyncio.TimeoutError:
        yield Verdict(False, f"the gate took more than {gate.minutes:g} minutes; see [trainer.gate]")
    finally:
        try:
            if process is not None:  # else it was called off while the process began, which asyncio then ends
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        finally:  # the service's end may call off the wait as well
            for path in (request, verdict):
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

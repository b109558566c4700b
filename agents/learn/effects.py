"""What an option brings: the same training with and without it, over several seeds, judged over the same links.

A file says which: a ``[[variant]]`` is a base configuration's training with some keys changed, a ``[[path]]`` where
all are judged. Each is judged by its frontier ratio, its delay over that of the hand rule's setting with equal
utilisation (``agents/evaluation/frontier.py``), and against plain Cubic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.batch import logs
from reinet.agents.evaluation.frontier import Baseline, Point, baselines, below_rule, is_sound, points_of, ratio
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export, uses
from reinet.agents.learn.sweep import configured
from reinet.agents.learn.train import refuse_another_run, train
from reinet.agents.model.artifact import used_traces
from reinet.core import PeriodConfig, toml_file
from reinet.core.errors import ConfigError
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace

Keys = dict[str, Any]
CURE = "give a file such as configs/effects/deepcc.toml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PathTable(_Strict):
    """``[[path]]``: where every variant is judged; keys that are not given are DeepCC's evaluation."""

    name: str
    mrtt_ms: float = 20.0
    buffer_bytes: int = 150_000
    target: str = "50ms"

    def over(self, trace: Trace, seconds: float) -> LinkSpec:
        """Returns the path over a trace; raises ConfigError, also where that lets no data through in time."""
        own = Scenario.of(
            trace, "sim", seconds=seconds, target=self.target, mrtt_ms=self.mrtt_ms, buffer_bytes=self.buffer_bytes
        )
        return own.require_data().path


class Variant(_Strict):
    """``[[variant]]``: a training that differs from another one, ``beside``, in what it is named for."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    what: str
    beside: str | None = None
    cc: Literal["cubic", "clean-slate"] = "cubic"
    """What stands below the cap on the links that judge."""
    keys: Keys = {}
    """Changes of the configuration, as ``{ "ddpg.noise" = 0.2 }``."""


class Plan(_Strict):
    """A file of variants."""

    about: str
    common: Keys = {}
    """Changes that every training here has."""
    path: tuple[PathTable, ...] = (PathTable(name="20 ms"),)
    variant: tuple[Variant, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _stand_beside_each_other(self) -> "Plan":
        names = [one.name for one in self.variant]
        for what, given in (("variant", names), ("path", [one.name for one in self.path])):
            if twice := [name for name in given if given.count(name) > 1]:
                raise ValueError(f"the {what} {twice[0]} is there twice")
        if lost := [one for one in self.variant if one.beside not in (None, *names)]:
            raise ValueError(f"{lost[0].name} stands beside {lost[0].beside!r}, which there is not")
        return self

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Returns what a file says; raises ConfigError."""
        return toml_file.load(path, cls, CURE)

    def config(self, variant: Variant, base: TrainConfig, seed: int, iterations: int | None = None) -> TrainConfig:
        """Returns a variant's training, cut to ``iterations`` if they are given; raises ConfigError."""
        config = configured(base, self.common | variant.keys | {"seed": seed}, f"variant {variant.name}")
        run, hindsight, evolution = config.run, config.hindsight, config.evolution
        if iterations is not None:
            run = run.model_copy(update={"iterations": min(run.iterations, iterations)})
            hindsight = hindsight.model_copy(update={"iterations": min(hindsight.iterations, iterations)})
            gathering = iterations - config.ddpg.normaliser_iterations  # of which half stay for evolution, at most
            generations = min(evolution.generations, max(gathering, 0) // 2)
            evolution = evolution.model_copy(update={"generations": generations})
        # The last checkpoint is judged, here, over other links: what chooses among checkpoints is another question.
        run = run.model_copy(update={"evaluate_every": run.iterations, "evaluate_s": 5.0, "evaluate_seeds": 1})
        traces = config.traces.model_copy(update={"select_count": 1})
        changes = {"name": variant.name, "run": run, "traces": traces, "hindsight": hindsight, "evolution": evolution}
        changes["harm"] = config.harm.model_copy(update={"repeat": 0})
        return toml_file.check(
            config.model_copy(update=changes).model_dump(), f"variant {variant.name}", TrainConfig, CURE
        )


def measure(
    base: TrainConfig,
    plan: Plan,
    traces: Sequence[Trace],
    seconds: float,
    folder: Path,
    *,
    seeds: Sequence[int] = (1,),
    iterations: int | None = None,
    threads: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each variant, seed and path as it is trained and judged: means over the traces.

    A run is left out in which the flow stalled, under the variant, plain control or every setting of the rule.
    Trainings lie in ``folder`` by name and seed; those that are complete are not made again. Raises ConfigError before
    the first one for a trace that a variant learns from, and where the run of another configuration lies in its place.
    """
    for variant in plan.variant:  # before the first training, which takes minutes
        learned_from = uses(plan.config(variant, base, seeds[0], iterations).traces)
        if found := used_traces(learned_from, [(trace.name, trace.sha256) for trace in traces]):
            name, use = found[0]
            raise ConfigError(f"traces: {name} has the content of {use.name}, which variant {variant.name} learns from")
        for seed in seeds:
            refuse_another_run(plan.config(variant, base, seed, iterations), folder / f"{variant.name}-seed{seed}")
    links = {path.name: [path.over(trace, seconds) for trace in traces] for path in plan.path}
    known: dict[tuple[str, PeriodConfig], list[Baseline]] = {}
    for variant in plan.variant:
        for seed in seeds:
            run_dir = folder / f"{variant.name}-seed{seed}"
            result = train(plan.config(variant, base, seed, iterations), run_dir).undisturbed()
            export(result.checkpoint, run_dir / "model")
            agent = make_agent(str(run_dir / "model"))
            for path, paths in links.items():
                key = (path, agent.view.period)
                if key not in known:
                    known[key] = baselines(paths, seconds, agent.view.period, threads)
                own = [replace(link, cc=variant.cc) for link in paths]
                runs = logs(agent, own, seconds, threads)
                about = {"variant": variant.name, "what": variant.what, "beside": variant.beside}
                asked = [run["decisions"] / seconds for run in runs]
                names = [trace.name for trace in traces]
                judged = means(names, points_of(runs, own, seconds), known[key], asked)
                yield about | {"seed": seed, "path": path} | judged


def means(
    traces: Sequence[str], points: Sequence[Point], beside: Sequence[Baseline], decisions_per_s: Sequence[float]
) -> dict[str, Any]:
    """Returns the means over the traces, by their names, in which nobody's flow stalled, and which are not among them:
    ``stalled``. Where every one is left out, the means are those of all and not ``valid``. ``below_rule`` is the share
    of them on which the ratios to the frontier rank nothing; their means have these all the same."""
    columns = [_stands(*each) for each in zip(points, beside, decisions_per_s, strict=True)]
    sound = list(map(is_sound, points, beside))
    counted = list(compress(columns, sound)) or columns
    row = {name: float(np.mean([column[name] for column in counted])) for name in columns[0]}
    return row | {
        "valid": any(sound),
        "stalled": [name for name, is_it in zip(traces, sound, strict=True) if not is_it],
    }


def _stands(point: Point, baseline: Baseline, decisions_per_s: float) -> dict[str, float]:
    stands, plain = ratio(point, baseline.rule), baseline.plain
    return {
        "frontier_mean": stands.mean,
        "frontier_p95": stands.p95,
        "throughput_ratio": point.utilization / plain.utilization,
        "qdelay_mean_ms": point.qdelay_mean_ms,
        "qdelay_p95_ms": point.qdelay_p95_ms,
        "times_lower_mean": plain.qdelay_mean_ms / point.qdelay_mean_ms,
        "times_lower_p95": plain.qdelay_p95_ms / point.qdelay_p95_ms,
        "decisions_per_s": decisions_per_s,
        "below_rule": below_rule(point, baseline),
    }


JUDGED = (
    "frontier_mean", "frontier_p95", "throughput_ratio", "times_lower_mean", "times_lower_p95", "decisions_per_s",
)  # fmt: skip


def over_seeds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each variant and path: the median over the seeds, and the lowest and highest ratios.

    ``seeds`` is how many are in it, the valid ones; where there is none, those of all, and the row is not ``valid``.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["variant"], row["path"]), []).append(row)
    summary = []
    for (variant, path), every in groups.items():
        valid = [row for row in every if row["valid"]]
        some = valid or every
        row = {"variant": variant, "beside": some[0]["beside"], "path": path}
        row |= {"seeds": len(valid), "valid": bool(valid)}
        for name in JUDGED:
            values = [one[name] for one in some]
            row[name] = float(np.median(values))
            if name.startswith("frontier"):
                row[f"{name}_range"] = f"{min(values):.2f} to {max(values):.2f}"
        summary.append(row)
    return summary

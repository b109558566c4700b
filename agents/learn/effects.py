"""What each part of DeepCC brings: the same training with and without it, judged over the same links.

A variant is ``configs/default.toml``'s training over Cubic alone with one thing changed, learned by hindsight, which
takes seconds and hardly differs between seeds; the paper's policy gradients take hours, so what a part would bring
there is another question. Each is judged by its frontier ratio: its delay over that of the hand rule's setting with
equal utilisation, each in its own time; and against plain Cubic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import View
from reinet.agents.evaluation.batch import figures
from reinet.agents.evaluation.frontier import Point, ratio, sweep
from reinet.agents.evaluation.objects import UNWATCHED
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export
from reinet.agents.learn.train import train
from reinet.envs.link.spec import LinkSpec

PAPERS_STATE: Mapping[str, Any] = {"normaliser_iterations": 4}
"""DeepCC's inputs need statistics, which the first iterations gather."""
SLATE = "clean-slate"


@dataclass(frozen=True)
class Variant:
    """A training that differs from another one, ``beside``, in what it is named for."""

    name: str
    beside: str | None
    what: str
    top: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the configuration's top level."""
    min_ms: float = 5.0
    cc: str = "cubic"
    ddpg: Mapping[str, Any] = field(default_factory=dict)

    def config(self, base: TrainConfig, seed: int, iterations: int) -> TrainConfig:
        """Returns its training; hindsight teaches in all iterations that do not gather statistics."""
        extra = int(self.ddpg.get("normaliser_iterations", 0))
        changes = {
            "period": {"min_ms": self.min_ms, "packet_timed": False},
            "links": {"congestion_controls": [self.cc]},
            "rollout": {"workers": 0, "links": 2 * base.rollout.links},
            "hindsight": {"iterations": iterations + extra},
            "run": {"iterations": iterations + extra, "evaluate_every": iterations + extra, "evaluate_s": 5.0},
            "traces": {"select_count": 1},  # the last checkpoint is judged, here, over other links
            "ddpg": self.ddpg,
        }
        said = base.model_dump()
        for section, values in changes.items():
            said[section] |= values
        return TrainConfig.model_validate(said | {"name": self.name, "seed": seed} | dict(self.top))


VARIANTS = (
    Variant("timescales-5ms", None, "what the shipped model sees, every 5 ms"),
    Variant("timescales-10ms", "timescales-5ms", "cadence: every 10 ms", min_ms=10),
    Variant("timescales-20ms", "timescales-5ms", "cadence: every 20 ms", min_ms=20),
    Variant("timescales-40ms", "timescales-5ms", "cadence: every 40 ms", min_ms=40),
    Variant(
        "deepcc-20ms", "timescales-20ms", "the paper's state", {"feature_set": "deepcc-5x20"}, 20, ddpg=PAPERS_STATE
    ),
    Variant(
        "deepcc-no-filter", "deepcc-20ms", "without the filter kernel", {"feature_set": "deepcc-4x20"}, 20,
        ddpg=PAPERS_STATE,
    ),
    Variant(
        "deepcc-no-history", "deepcc-20ms", "without history", {"feature_set": "deepcc-5x1"}, 20, ddpg=PAPERS_STATE
    ),
    Variant("clean-slate-5ms", "timescales-5ms", "Clean-Slate: the action sets the window", cc=SLATE),
    Variant("clean-slate-20ms", "timescales-20ms", "Clean-Slate, every 20 ms", min_ms=20, cc=SLATE),
)  # fmt: skip


def measure(
    base: TrainConfig,
    variants: Sequence[Variant],
    links: Sequence[LinkSpec],
    seconds: float,
    folder: Path,
    *,
    seeds: Sequence[int] = (1,),
    iterations: int = 40,
    threads: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each variant and seed as it is trained and judged.

    Trainings lie in ``folder`` by name and seed; those that are complete are not made again. ``links`` are Cubic's.
    """
    plain = [Point.of(metrics) for metrics in figures(NoCap(View(period=UNWATCHED)), links, seconds, threads)]
    settings = sweep(links, seconds, threads=threads)
    for variant in variants:
        for seed in seeds:
            run_dir = folder / f"{variant.name}-seed{seed}"
            result = train(variant.config(base, seed, iterations), run_dir)
            export(result.checkpoint, run_dir / "model")
            agent = make_agent(str(run_dir / "model"))
            own = [replace(link, cc=variant.cc) for link in links]
            points = [Point.of(metrics) for metrics in figures(agent, own, seconds, threads)]
            stands = [ratio(point, knob) for point, knob in zip(points, settings, strict=True)]
            yield {
                "variant": variant.name,
                "what": variant.what,
                "beside": variant.beside,
                "seed": seed,
                "frontier_mean": _mean(one.mean for one in stands),
                "frontier_p95": _mean(one.p95 for one in stands),
                "throughput_ratio": _mean(a.utilization / b.utilization for a, b in zip(points, plain, strict=True)),
                "qdelay_mean_ms": _mean(point.qdelay_mean_ms for point in points),
                "qdelay_p95_ms": _mean(point.qdelay_p95_ms for point in points),
                "times_lower_mean": _mean(
                    b.qdelay_mean_ms / a.qdelay_mean_ms for a, b in zip(points, plain, strict=True)
                ),
            }


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))

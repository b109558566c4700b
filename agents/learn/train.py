"""reinet's own learning: gather, learn, evaluate, keep.

    calibrate the normaliser on the cold start's walk, then freeze it
    repeat:
      gather fresh flows (walk, then actor + noise)  ->  replay
      update critic and actor on batches from it: the actor by hindsight first, then by the critic's advice
      or, at the end: one generation of evolution
      now and then: evaluate without noise on other traces; keep the best; write a checkpoint

Synchronous: an iteration's flows depend on weights, seed and number of the iteration only, so a run is repeatable bit
for bit, whether or not it was interrupted. Scalars are defined in ``docs/scalars.md``.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reinet.agents.evaluation import no_harm
from reinet.agents.evaluation.frontier import Baseline, Point, ratio
from reinet.agents.learn import checkpoint
from reinet.agents.learn.actors import FoldedActor
from reinet.agents.learn.checkpoint import Best, Checkpoint, Evolved, State
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.evolution import Evolution, last_layer, with_last_layer
from reinet.agents.learn.hidden import SIZE
from reinet.agents.learn.links import STRATA, selection_links, stratum_of, training_traces
from reinet.agents.learn.loop import Progress, Result, learn
from reinet.agents.learn.recordings import recordings
from reinet.agents.learn.replay import Replay
from reinet.agents.learn.workers import RayGatherers
from reinet.agents.model.mlp import hidden_units
from reinet.core import FEATURE_SETS, Normaliser
from reinet.core.errors import ConfigError, ReinetError
from reinet.core.visible import visible

SCORE_FLOOR = 0.965
"""A checkpoint that keeps less of plain throughput than this on the mean of the links counts as worse for it: delay can
always be had for throughput."""
SCORE_FLOOR_WEIGHT = 4.0
SCORE_WORST_WEIGHT = 0.1
"""The worst link counts so much beside the mean: a policy is no use that is good on all links but one."""
EVALUATED = (
    "score", "frontier_mean", "frontier_p95", "frontier_worst", "throughput_ratio", "throughput_ratio_min",
    "qdelay_ratio", "qdelay_ratio_max", "utilization", "qdelay_mean_ms", "qdelay_p95_ms",
)  # fmt: skip
"""What every evaluation tells (``judged``), by name; scalars have ``eval/`` before it. The best checkpoint's record,
its model's manifest and card also have the strata of its links, and what the gate for no harm found."""
EVOLUTION_STATES = 4096
"""So many states of the replay tell how much each unit varies."""
ANEW = "train anew, as another job or in another --run-dir"
"""A job of the training service has a folder that its owner does not choose."""
_MAY_CHANGE = {"iterations", "keep", "checkpoint_every"}
"""These keys of [run] may differ when a run is resumed: they change nothing that was computed before. Iterations may
not once there was evolution, which ends a run: what was learned after it would be neither run's. Nor may policy
gradients be added to a run of hindsight alone, whose critic has learned nothing (``Ddpg.judged``)."""


def train(
    config: TrainConfig,
    run_dir: Path,
    resume: bool = True,
    minutes: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    ray_address: str | None = None,
) -> Result:
    """Trains until ``config.run.iterations`` are done, ``minutes`` have passed or it is told to end (``told_to_end``).

    It leaves a checkpoint, and goes on from the run folder's newest one that is whole unless ``resume`` is False, which
    demands an empty folder. Raises ConfigError when the folder holds another configuration's run, or another training
    is at work in it, or where there was nothing to learn from.
    """
    torch.set_num_threads(1)  # batches are small, and results must not depend on the machine's number of cores
    with checkpoint.locked(run_dir):
        previous = _previous(config, run_dir, resume)
        with RayGatherers(config, training_traces(config), ray_address) as gatherers:
            return learn(Run(config, run_dir, gatherers, previous), config.run, run_dir, minutes, progress)


def refuse_another_run(config: TrainConfig, run_dir: Path) -> None:
    """Raises ConfigError where ``train`` would before it begins, for a run in the folder or one at work in it."""
    with checkpoint.locked(run_dir):
        _previous(config, run_dir, resume=True)


class Run:
    """The state of a run and its one iteration; who calls it writes down the scalars and asks for checkpoints."""

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        gatherers: RayGatherers,
        previous: Checkpoint | None = None,
    ) -> None:
        features = FEATURE_SETS[config.feature_set]
        self._config, self._run_dir = config, run_dir
        self._gatherers = gatherers
        self._links = selection_links(config)
        self._strata = [stratum_of(link) for link in self._links]
        self._recordings = recordings(config.traces).uses
        self.ddpg = Ddpg(config.ddpg, features.state_size, config.seed, config.hindsight, features.history)
        hidden_size = SIZE if config.ddpg.privileged else 0
        taught_size = config.hindsight.taught_size
        self.replay = Replay(config.ddpg.replay, features.history, len(features.features), hidden_size, taught_size)
        self.rng = np.random.Generator(np.random.PCG64(config.seed))
        self.normaliser = Normaliser(config.feature_set)
        self.baselines: list[Baseline] = []
        self.best: Best | None = None
        self.iteration = self.env_steps = self.updates = 0
        self._evolution: Evolution | None = None
        self._start_s = time.monotonic()
        if previous:
            self.restore(previous)

    def wall_s(self) -> float:
        """Returns the seconds of training, all sittings together."""
        return time.monotonic() - self._start_s

    def iterate(self) -> dict[str, float]:
        """Learns once, and evaluates when it is time. Returns the scalars."""
        run = self._config.run
        calibrating = self.iteration < self._config.ddpg.normaliser_iterations
        evolving = self.iteration >= run.iterations - self._config.evolution.generations
        scalars = self._evolve() if evolving else self._gather_and_learn(calibrating)
        self.iteration += 1
        last = self.iteration == run.iterations
        if last and not self.updates:
            raise self._untaught()
        if self.updates and (self.iteration % run.evaluate_every == 0 or last):  # the first weights are nobody's best
            scalars |= self._evaluate()
        return scalars

    def _untaught(self) -> ConfigError:
        return ConfigError(
            f"{self._run_dir}: {self.iteration} iterations taught nothing: caps act once a flow's first second is over "
            "and it has shown a queue, and no flow came so far. Give more than rollout.periods = "
            f"{self._config.rollout.periods}, or longer flows in links.short_bytes, and {ANEW}"
        )

    def _gather_and_learn(self, calibrating: bool) -> dict[str, float]:
        config, started_s = self._config, time.monotonic()
        walking = self.iteration < config.ddpg.normaliser_iterations + config.ddpg.cold_start_iterations
        actor = None if walking else self.ddpg.actor.folded()
        self.ddpg.set_progress(self.iteration, config.run.iterations - config.evolution.generations)
        normaliser = Normaliser.reference(config.feature_set) if calibrating else self.normaliser
        gathered = self._gatherers.gather(actor, normaliser, self.iteration)
        scalars = means([experience.summary for experience in gathered])
        self.env_steps += sum(experience.periods for experience in gathered)
        gathered_s = time.monotonic()
        if calibrating:
            for experience in gathered:
                self.normaliser.merge(experience.normaliser)
        else:
            for experience in gathered:
                for fragment in experience.fragments:
                    self.replay.add(fragment)
            self.replay.index()
            scalars |= self._learn()
        return scalars | {
            "charts/env_steps": self.env_steps,
            "charts/replay_transitions": len(self.replay),
            "charts/gather_s": gathered_s - started_s,
            "charts/learn_s": time.monotonic() - gathered_s,
        }

    def _evolve(self) -> dict[str, float]:
        """Runs one generation; from then on its mean is the actor that is evaluated and exported."""
        started_s = time.monotonic()
        actor = self.ddpg.best_actor().folded()
        if self._evolution is None:
            if not len(self.replay):
                raise self._untaught()
            self._evolution = self._evolution_from(last_layer(actor))
        members = self._evolution.members()
        ranked = self._gatherers.costs(actor, members, self.normaliser, self.iteration)
        costs = ranked.costs.mean(axis=1)
        self.env_steps += ranked.periods
        self._evolution.tell(costs[:-1])
        self.ddpg.set_last_layer(with_last_layer(actor, self._evolution.mean()))
        return {
            "evolution/cost_of_mean": float(costs[-1]),
            "evolution/cost_of_best": float(costs[:-1].min()),
            "charts/env_steps": self.env_steps,
            "charts/gather_s": time.monotonic() - started_s,
        }

    def _evolution_from(self, start: NDArray[np.float64]) -> Evolution:
        rng = np.random.Generator(np.random.PCG64(self._config.seed))
        states = self.replay.sample(EVOLUTION_STATES, rng).states
        units = hidden_units(self.ddpg.best_actor().folded(), states)
        return Evolution(self._config.evolution, self._config.seed, start, units)

    def _learn(self) -> dict[str, float]:
        if not len(self.replay):
            return {}  # no flow has shown a queue yet: rollouts were too short, or their links too fast
        sums: dict[str, list[torch.Tensor]] = {}
        for _ in range(self._config.run.updates):
            batch = self.replay.sample(self._config.ddpg.batch, self.rng)
            noise = (
                self.rng.standard_normal((len(batch.rewards), 1), np.float32) if self._config.ddpg.smoothing else None
            )
            for tag, loss in self.ddpg.update(batch, noise).items():
                sums.setdefault(tag, []).append(loss)
        self.updates += self._config.run.updates
        scalars = {tag: float(torch.stack(losses).mean()) for tag, losses in sums.items()}
        lost = [tag for tag, value in scalars.items() if not math.isfinite(value)]
        if lost := lost or self.ddpg.lost():  # the last update's weights are in no loss yet
            raise ReinetError(
                f"{lost[0]} is not finite in iteration {self.iteration + 1}: the training diverged, and "
                f"nothing of this iteration is kept; the newest checkpoint below {self._run_dir} is from before. "
                f"Choose a lower ddpg.critic_lr or ddpg.actor_lr, and {ANEW}"
            )
        return scalars

    def _evaluate(self) -> dict[str, float]:
        """Runs flows without noise on the selection links; returns scalars. The best networks go to ``best/``."""
        view = self._config.view(self.normaliser)
        if len(self.baselines) != len(self._links):
            if self.baselines:
                self._begin_judging_anew()
            self.baselines = self._gatherers.baselines(self._links, view.period)
        actor = FoldedActor(self.ddpg.best_actor().folded(), self._config.head, view, self._config.calm_rtts)
        points = [Point.of(metrics) for metrics in self._gatherers.evaluate(self._links, actor)]
        metrics = judged(points, self.baselines, self._strata)
        if found := chosen(self.best, self.iteration, metrics, actor, self._config):
            self.best = found
            checkpoint.save(self._run_dir / "best", self._state(), self.ddpg.state(), None)
        return {f"eval/{name}": metrics[name] for name in EVALUATED}

    def _begin_judging_anew(self) -> None:
        """Forgets the best of a run that another version judged on other links, whose scores do not compare."""
        self.best = None
        told = (
            f"{self._run_dir}: another version judged its run on {len(self.baselines)} links, this one has "
            f"{len(self._links)} for it: baselines are measured anew, and the best checkpoint is chosen from here on"
        )
        print(visible(told), file=sys.stderr, flush=True)

    def save(self) -> Path:
        """Writes a checkpoint to resume from; returns its folder."""
        folder = checkpoint.place(self._run_dir, self.iteration)
        self.save_to(folder)
        checkpoint.prune(self._run_dir, self._config.run.keep)
        return folder

    def save_to(self, folder: Path) -> None:
        """Makes this folder a checkpoint to resume from."""
        checkpoint.save(folder, self._state(), self.ddpg.state(), self.replay.state())

    def finish(self) -> Path:
        """Returns the newest checkpoint, written now if the last iteration left none."""
        if self.iteration > self._config.ddpg.normaliser_iterations and not self.updates:
            print(visible(str(self._untaught())), file=sys.stderr, flush=True)  # no fault yet: iterations are left
        folder = checkpoint.place(self._run_dir, self.iteration)
        return folder if folder.is_dir() else self.save()

    def _state(self) -> State:
        return State(
            config=self._config,
            iteration=self.iteration,
            env_steps=self.env_steps,
            updates=self.updates,
            wall_s=self.wall_s(),
            normaliser=self.normaliser.to_dict(),
            rng=dict(self.rng.bit_generator.state),
            baselines=self.baselines,
            best=self.best,
            evolved=self._evolved(),
            recordings=self._recordings,
        )

    def _evolved(self) -> Evolved | None:
        evolution = self._evolution
        return None if evolution is None else Evolved(start=evolution.start.tolist(), costs=evolution.told)

    def restore(self, previous: Checkpoint) -> None:
        """Goes back to where a checkpoint with its replay stands."""
        state = previous.state
        assert previous.replay is not None
        self.ddpg.load(previous.learner)
        self.replay.load(previous.replay)
        self.rng.bit_generator.state = state.rng
        self.normaliser = Normaliser.from_dict(state.normaliser, self._config.feature_set)
        self.baselines, self.best = state.baselines, state.best
        self.iteration, self.env_steps, self.updates = state.iteration, state.env_steps, state.updates
        self.ddpg.updates = state.updates
        if state.evolved:
            self._evolution = self._evolution_from(np.array(state.evolved.start))
            for costs in state.evolved.costs:
                self._evolution.members()
                self._evolution.tell(costs)
        self._start_s = time.monotonic() - state.wall_s


def means(summaries: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns each tag's mean over the workers that have it: one whose flows were all too short to decide has none."""
    tags = dict.fromkeys(tag for summary in summaries for tag in summary)
    return {tag: float(np.mean([summary[tag] for summary in summaries if tag in summary])) for tag in tags}


def chosen(
    best: Best | None, iteration: int, metrics: dict[str, float], actor: FoldedActor, config: TrainConfig
) -> Best | None:
    """Returns what an evaluation makes of the best checkpoint so far, None where that stays.

    One that the gate for no harm (``[harm]``) refuses gives way to any that it does not; else the score decides.
    """
    score = metrics["score"]
    if best is not None and not best.harms and score <= best.score:
        return None  # whatever the gate says
    harm = no_harm.measure(actor, config.links.congestion_controls, config.harm)
    found = Best(iteration=iteration, score=score, metrics=metrics | harm.metrics, harms="" if harm.ok else harm.words)
    return found if best is None or (not found.harms, score) > (not best.harms, best.score) else None


def judged(
    points: Sequence[Point], baselines: Sequence[Baseline], strata: Sequence[str] | None = None
) -> dict[str, float]:
    """Returns how a policy stands on links against their baselines; ``score`` is what chooses the best checkpoint.

    score = -(mean frontier ratio of the delay + that of p95) / 2 - 0.1 x the worst of them - 4 x shortfall of the mean
    throughput below 96.5 % of plain congestion control's. Both means are over the strata of what each has, so that
    links of which there are many do not outvote the others; ``stratum_*`` is what each adds.
    """
    ratios = [ratio(point, baseline.rule) for point, baseline in zip(points, baselines, strict=True)]
    mean, p95 = np.array([r.mean for r in ratios]), np.array([r.p95 for r in ratios])
    plain = [baseline.plain for baseline in baselines]
    throughput = np.array([a.utilization / b.utilization for a, b in zip(points, plain, strict=True)])
    delay = np.array([a.qdelay_mean_ms / max(b.qdelay_mean_ms, 1.0) for a, b in zip(points, plain, strict=True)])
    shortfall = max(0.0, SCORE_FLOOR - float(throughput.mean()))
    worst = max(float(mean.max()), float(p95.max()))
    kind = np.array(strata or [""] * len(mean))
    each = {name: float((mean + p95)[kind == name].mean()) / 2 for name in dict.fromkeys(kind.tolist())}
    score = -np.mean(list(each.values())) - SCORE_WORST_WEIGHT * worst - SCORE_FLOOR_WEIGHT * shortfall
    return {
        "score": float(score),
        "frontier_mean": float(mean.mean()),
        "frontier_p95": float(p95.mean()),
        "frontier_worst": worst,
        "throughput_ratio": float(throughput.mean()),
        "throughput_ratio_min": float(throughput.min()),
        "qdelay_ratio": float(delay.mean()),
        "qdelay_ratio_max": float(delay.max()),
        "utilization": float(np.mean([p.utilization for p in points])),
        "qdelay_mean_ms": float(np.mean([p.qdelay_mean_ms for p in points])),
        "qdelay_p95_ms": float(np.mean([p.qdelay_p95_ms for p in points])),
        **{f"stratum_{name}": each[name] for name in STRATA if name in each},
    }


def _previous(config: TrainConfig, run_dir: Path, resume: bool) -> Checkpoint | None:
    """Returns what a run goes on from, None where it begins; says on standard error which checkpoints are damaged."""
    if not resume and checkpoint.checkpoints(run_dir):
        raise ConfigError(f"{run_dir}: holds a run already; choose another --run-dir, or go on without --fresh")
    previous, damaged = checkpoint.newest_whole(run_dir)
    if previous is None:
        return None
    if previous.replay is None:
        raise ConfigError(f"{previous.folder}: has no replay, so it cannot be resumed; remove it")
    _refuse_other(config, run_dir, previous.state)
    for folder, problem in damaged.items():
        aside = checkpoint.set_aside(folder)
        told = f"{problem}; it lies in {aside} now, and the run goes on from {previous.folder}"
        print(visible(told), file=sys.stderr, flush=True)
    return previous


def _refuse_other(config: TrainConfig, run_dir: Path, before: State) -> None:
    """Raises ConfigError where a run that stands so far cannot go on by this configuration."""
    ours, theirs = _flat(config.model_dump()), _flat(before.config.model_dump())
    for key, value in ours.items():
        if value != theirs.get(key) and key.removeprefix("run.") not in _MAY_CHANGE:
            raise ConfigError(
                f"{run_dir}: its run has {key} = {theirs.get(key)!r}, the configuration {value!r}; "
                "choose another --run-dir, or the configuration the run began with"
            )
    if before.recordings != recordings(config.traces).uses:
        raise ConfigError(
            f"{run_dir}: its run began with other recordings than the configuration finds now; choose another "
            "--run-dir, or put the files back"
        )
    iterations = before.config.run.iterations
    if before.evolved and config.run.iterations != iterations:
        raise ConfigError(
            f"{run_dir}: its evolution, the last of its {iterations} iterations, has begun, so it cannot have "
            f"{config.run.iterations}; choose another --run-dir, or run.iterations = {iterations}"
        )
    done, generations = before.iteration, config.evolution.generations
    if generations and not before.evolved and done > config.run.iterations - generations:
        raise ConfigError(
            f"{run_dir}: {done} iterations of its run are done, and of {config.run.iterations} the last {generations} "
            f"are evolution; choose another --run-dir, or run.iterations = {done + generations} or more"
        )
    taught = config.hindsight.iterations
    if taught and iterations - generations <= taught < config.run.iterations - generations:
        raise ConfigError(
            f"{run_dir}: its run was hindsight alone, {taught} iterations in which no critic learned, so policy "
            f"gradients cannot follow; choose another --run-dir, or run.iterations = {taught + generations} or less"
        )


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat

"""RLlib's own SAC and PPO on reinet's simulated links, judged and kept as reinet's own policies are.

    RLlib: gather, learn                                   over links drawn as reinet's training draws them
    now and then: the policy as plain layers, evaluated without noise on the selection links; the best is kept

What comes out is a checkpoint folder for ``reinet export``. RLlib promises no repeatability with workers, and its
checkpoints drop the replay and need pickle: a run here is one sitting, and is not resumed.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.evaluation.frontier import Point
from reinet.agents.learn import checkpoint
from reinet.agents.learn.actors import FoldedActor
from reinet.agents.learn.checkpoint import Best, State
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.links import domain_of, selection_links, stratum_of, training_traces
from reinet.agents.learn.loop import Progress, Result, learn
from reinet.agents.learn.recordings import recordings
from reinet.agents.learn.rllib.config import PeerConfig
from reinet.agents.learn.rllib.environments import SIM_LINK, register_with_rllib
from reinet.agents.learn.rllib.policy import is_lost, layers_of, put_into
from reinet.agents.learn.train import EVALUATED, chosen, judged
from reinet.agents.learn.workers import RayGatherers, join_ray
from reinet.agents.model.mlp import Folded
from reinet.core import FEATURE_SETS, Normaliser
from reinet.core.errors import ConfigError, ReinetError


def train_peer(
    config: PeerConfig,
    run_dir: Path,
    minutes: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    ray_address: str | None = None,
) -> Result:
    """Trains until ``config.run.iterations`` are done, ``minutes`` have passed or it is told to end (``told_to_end``).

    Raises ConfigError where the folder holds a run, or RLlib knows no such setting; ReinetError without RLlib.
    """
    with checkpoint.locked(run_dir):
        checkpoint.refuse_a_run(run_dir)
        return _train_peer(config, run_dir, minutes, progress, ray_address)


def _train_peer(
    config: PeerConfig,
    run_dir: Path,
    minutes: float | None,
    progress: Callable[[Progress], None] | None,
    ray_address: str | None,
) -> Result:
    ray, owns_ray = _ray(config, ray_address)
    try:
        algorithm = algorithm_config(config).build_algo()
        here = config.model_copy(update={"rollout": config.rollout.model_copy(update={"workers": 0})})
        try:
            with RayGatherers(here, []) as judges:  # evaluation alone: RLlib's runners have Ray's CPUs
                return learn(_PeerRun(config, run_dir, algorithm, judges), config.run, run_dir, minutes, progress)
        finally:
            algorithm.stop()
            shutil.rmtree(algorithm.logdir, ignore_errors=True)  # a folder of RLlib's own in the user's home
    finally:
        if owns_ray:
            ray.shutdown()


def algorithm_config(config: PeerConfig) -> Any:
    """Returns RLlib's ``AlgorithmConfig`` for a training; raises ConfigError for a setting that RLlib does not know."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig

    register_with_rllib()
    section, rollout, network = config.rllib, config.rollout, config.ddpg.hidden
    chosen = {"SAC": SACConfig, "PPO": PPOConfig}[section.algorithm]()
    chosen.environment(SIM_LINK, env_config=environment_of(config))
    chosen.env_runners(
        num_env_runners=rollout.workers,
        num_envs_per_env_runner=rollout.links,
        gym_env_vectorize_mode="vector_entry_point",
        rollout_fragment_length=section.fragment_periods or "auto",
    )
    # The same network for everyone: hidden layers with ReLU, one linear layer to the action.
    shape = {"fcnet_hiddens": network, "fcnet_activation": "relu", "head_fcnet_hiddens": []}
    chosen.rl_module(model_config=shape | ({"vf_share_layers": False} if section.algorithm == "PPO" else {}))
    chosen.framework("torch").learners(num_learners=0).debugging(seed=config.seed, log_level="ERROR")
    records = max(rollout.workers, 1) * rollout.links * rollout.periods
    chosen.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=records)
    try:
        chosen.training(**section.training)
        chosen.validate()
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"rllib.training: {section.algorithm} of RLlib refuses it: {error}") from None
    return chosen


def environment_of(config: PeerConfig) -> dict[str, Any]:
    """Returns what ``SimLinks`` is told: the links, states and rewards of reinet's own training.

    Statistics are typical ones: RLlib has no calibration, and sets such as ``timescales-24x1`` need none.
    """
    return {
        "domain": domain_of(config.links, training_traces(config)),
        "head": config.head,
        "feature_set": config.feature_set,
        "normaliser": Normaliser.reference(config.feature_set),
        "period": config.period.rule(),
        "episode_periods": config.rollout.periods,
        "reward": config.reward.kind,
        "delay_weight": config.reward.delay_weight,
        "unbounded": config.rllib.algorithm == "PPO",
    }


def _ray(config: PeerConfig, address: str | None) -> tuple[Any, bool]:
    """Returns Ray, running, and whether it was started here."""
    try:
        import ray
        import ray.rllib  # without its packages this fails
    except ImportError as error:
        raise ReinetError(f"[rllib] needs RLlib ({error}); run pip install 'reinet[rllib]'") from None
    return ray, join_ray(ray, max(config.rollout.workers, 1), address)


def policy_of(config: PeerConfig, algorithm: Any) -> list[Any]:
    """Returns the policy that an RLlib algorithm has learned so far, as plain layers."""
    state = algorithm.learner_group.get_state(components="learner/rl_module", inference_only=True)
    return layers_of(config.rllib.algorithm, state["learner"]["rl_module"]["default_policy"])


def updates_in(told: Any) -> int:
    """Returns how many gradient steps an iteration took, by what RLlib tells of it."""
    learned = told.get("learners", {}).get("default_policy", {})
    steps, size = learned.get("num_module_steps_trained", 0), learned.get("module_train_batch_size_mean", 0)
    return round(float(steps) / float(size)) if size else 0


class _PeerRun:
    """A run whose learning is RLlib's; how its policy is judged and kept is reinet's."""

    def __init__(self, config: PeerConfig, run_dir: Path, algorithm: Any, judges: RayGatherers) -> None:
        self._config, self._run_dir, self._algorithm, self._judges = config, run_dir, algorithm, judges
        self._links = selection_links(config)
        self._view = config.view(Normaliser.reference(config.feature_set))
        self._baselines = judges.baselines(self._links, self._view.period)
        self.best: Best | None = None
        self.iteration = self.env_steps = self.updates = 0
        self._judged_iteration = 0
        self._start_s = time.monotonic()

    def wall_s(self) -> float:
        """Returns the seconds of training."""
        return time.monotonic() - self._start_s

    def iterate(self) -> dict[str, float]:
        """Lets RLlib gather and learn, and evaluates when it is time. Returns the scalars."""
        try:
            told = self._algorithm.train()
        except Exception:  # it names what lost weights broke first: a distribution, a link's step, a worker
            self._require_weights()
            raise
        self._require_weights()
        self.iteration += 1
        self.env_steps = int(told["num_env_steps_sampled_lifetime"])
        self.updates += updates_in(told)
        scalars = {"charts/env_steps": float(self.env_steps)}
        ended = told["env_runners"]
        returned, periods = (ended.get(f"episode_{what}_mean", np.nan) for what in ("return", "len"))
        if np.isfinite(returned) and periods > 0:  # an episode that its flow ended has fewer than rollout.periods
            scalars["charts/reward_per_period"] = float(returned) / float(periods)
        run = self._config.run
        if self.iteration % run.evaluate_every == 0 or self.iteration == run.iterations:
            scalars |= self._evaluate()
        return scalars

    def _require_weights(self) -> None:
        """Raises ReinetError where the policy is lost: RLlib itself goes on with what is no number."""
        if is_lost(policy_of(self._config, self._algorithm)):
            raise ReinetError(
                f"{self._config.rllib.algorithm} of RLlib diverged after iteration {self.iteration}: the numbers of "
                f"its policy are beyond what it computes with. Nothing of that is kept; what {self._run_dir} holds is "
                "from before. Train with a lower lr in rllib.training, in another folder"
            )

    def _evaluate(self) -> dict[str, float]:
        """Runs flows without noise on the selection links; returns scalars. The best policy goes to ``best/``."""
        policy = Folded(policy_of(self._config, self._algorithm))
        actor = FoldedActor(policy, self._config.head, self._view)
        points = [Point.of(metrics) for metrics in self._judges.evaluate(self._links, actor)]
        metrics = judged(points, self._baselines, [stratum_of(link) for link in self._links])
        self._judged_iteration = self.iteration
        if found := chosen(self.best, self.iteration, metrics, actor, self._config):
            self.best = found
            self._save_to(self._run_dir / "best")
        return {f"eval/{name}": metrics[name] for name in EVALUATED}

    def save(self) -> Path:
        """Writes a checkpoint to export; returns its folder."""
        folder = checkpoint.place(self._run_dir, self.iteration)
        self._save_to(folder)
        checkpoint.prune(self._run_dir, self._config.run.keep)
        return folder

    def finish(self) -> Path:
        """Returns the newest checkpoint, whose policy has been judged too: this sitting is the only one."""
        folder = checkpoint.place(self._run_dir, self.iteration)
        if self._judged_iteration < self.iteration:
            self._evaluate()  # a checkpoint that is there does not know of it
        elif folder.is_dir():
            return folder
        return self.save()

    def _save_to(self, folder: Path) -> None:
        config = self._config
        learner = Ddpg(config.ddpg, FEATURE_SETS[config.feature_set].state_size, config.seed)
        put_into(learner, policy_of(config, self._algorithm))
        state = State(
            config=config,
            iteration=self.iteration,
            env_steps=self.env_steps,
            updates=self.updates,
            wall_s=self.wall_s(),
            normaliser=self._view.normaliser.to_dict(),
            rng={},
            baselines=self._baselines,
            best=self.best,
            recordings=recordings(config.traces).uses,
        )
        checkpoint.save(folder, state, learner.state(), None)

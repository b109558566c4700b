"""reinet's learner as an RLlib ``Algorithm``: configuration object, ``train``, checkpoints, Tune.

An adapter: the learner, its replay and its rollouts are those of ``reinet train``, bit for bit; RLlib's own runners,
replay and connectors stay out, since they cost several times the update of a small network.

    ReinetConfig().training(configuration="configs/default.toml", varied={"seed": tune.grid_search([1, 2])})
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.tune import PlacementGroupFactory

from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.links import training_traces
from reinet.agents.learn.sweep import configured
from reinet.agents.learn.train import EVALUATED, Run
from reinet.agents.learn.workers import RayGatherers, bundles
from reinet.core.errors import ModelError

CHECKPOINT_FOLDER, BEST_FOLDER, EVALUATION_FILE = "reinet", "best", "evaluation.json"


class ReinetConfig(AlgorithmConfig):  # type: ignore[misc]
    """What a training is to be: a training configuration, and keys of it that are to be otherwise."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or Reinet)
        self.configuration: dict[str, Any] = TrainConfig().model_dump(mode="json")
        """A training configuration as plain data."""
        self.varied: dict[str, Any] = {}
        """Keys as ``section.key``; here Tune's searches may stand."""

    def training(self, *, configuration: Any = NotProvided, varied: Any = NotProvided, **others: Any) -> "ReinetConfig":
        """Sets the configuration, a ``TrainConfig`` or the path of its TOML file, and what of it is otherwise."""
        super().training(**others)
        if configuration is not NotProvided:
            chosen = configuration if isinstance(configuration, TrainConfig) else TrainConfig.load(configuration)
            self.configuration = chosen.model_dump(mode="json")
        if varied is not NotProvided:
            self.varied = dict(varied)
        return self

    def train_config(self) -> TrainConfig:
        """Returns the training configuration with the varied keys; raises ConfigError."""
        return configured(TrainConfig.model_validate(self.configuration), self.varied)

    def validate(self) -> None:
        """Raises ConfigError for a configuration that cannot be; RLlib's own settings have nothing to say here."""
        self.train_config()


class Reinet(Algorithm):  # type: ignore[misc]
    """The learner. An iteration is one of ``reinet train``; its scalars stand in the result by their names' parts.

    ``eval/...`` is in every result, as Tune's searches and schedulers need it: that of the newest evaluation, NaN
    before the first. The iteration that the configuration ends with says ``done``, which ends a trial. The best policy
    so far lies in ``best/`` of the trial's folder and of each checkpoint, for ``reinet export``.
    """

    @classmethod
    def get_default_config(cls) -> ReinetConfig:
        """Returns the configuration that a training has where nothing else is said."""
        return ReinetConfig()

    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """Returns what Tune sets aside for a trial."""
        chosen = cls.get_default_config().update_from_dict(config)
        return PlacementGroupFactory(bundles(chosen.train_config().rollout.workers))

    def setup(self, config: Any) -> None:
        """Starts the workers; called by RLlib."""
        if not isinstance(config, AlgorithmConfig):
            config = self.get_default_config().update_from_dict(config)
        self.config = config
        kinds = config.callbacks_class
        self.callbacks = [kind() for kind in (kinds if isinstance(kinds, list | tuple) else [kinds])]
        self.env_runner_group = None
        self._set_up_metrics()
        settings = config.train_config()
        self._folder = Path(self.logdir)
        self._gatherers = RayGatherers(settings, training_traces(settings))
        self._run = Run(settings, self._folder, self._gatherers)
        self._evaluation = {f"eval/{name}": math.nan for name in EVALUATED}

    def step(self) -> dict[str, Any]:
        """Returns the result of an iteration; called by ``train`` and by Tune."""
        result: dict[str, Any] = super().step()
        # As reinet train ends: what comes after the last iteration is no longer the training that was configured.
        return result | {"done": self._run.iteration >= self.config.train_config().run.iterations}

    def training_step(self) -> None:
        """Takes one iteration of the learner and logs its scalars."""
        scalars = self._run.iterate()
        # RLlib forgets a value with the result that it stood in, and gives NaN from then on.
        self._evaluation |= {tag: value for tag, value in scalars.items() if tag.startswith("eval/")}
        scalars |= self._evaluation | {
            "num_env_steps_sampled_lifetime": float(self._run.env_steps),
            "num_updates_lifetime": float(self._run.updates),
        }
        for tag, value in scalars.items():
            self.metrics.log_value(tuple(tag.split("/")), value, window=1)

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Does nothing: there are no runners of RLlib's, and reinet's workers restart by themselves."""
        return []

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes learner, replay and the best policy there, as safetensors and JSON."""
        self._run.save_to(Path(checkpoint_dir) / CHECKPOINT_FOLDER)
        (Path(checkpoint_dir) / EVALUATION_FILE).write_text(json.dumps(self._evaluation))
        if self._run.best is not None:
            shutil.copytree(self._folder / BEST_FOLDER, Path(checkpoint_dir) / BEST_FOLDER, dirs_exist_ok=True)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Goes back to what ``save_checkpoint`` wrote; raises ModelError where that was another configuration's."""
        previous = Checkpoint(Path(checkpoint_dir) / CHECKPOINT_FOLDER)
        if previous.state.config != self.config.train_config():
            raise ModelError(f"{checkpoint_dir}: is another configuration's; restore it with the one it was made with")
        self._run.restore(previous)
        self._evaluation = json.loads((Path(checkpoint_dir) / EVALUATION_FILE).read_text())
        if self._run.best is not None:
            shutil.copytree(Path(checkpoint_dir) / BEST_FOLDER, self._folder / BEST_FOLDER, dirs_exist_ok=True)

    def cleanup(self) -> None:
        """Ends the workers."""
        self._gatherers.close()

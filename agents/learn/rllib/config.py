"""A training by one of RLlib's own algorithms: reinet's configuration with a table ``[rllib]``.

Traces, links, period, state, head, reward, the number of workers and the shape of the network mean what they mean
for reinet's learner, so that what differs is the algorithm alone. Nothing of RLlib is imported here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reinet.agents.learn.config import TrainConfig
from reinet.core import toml_file

TABLE = "rllib"


class RllibSection(BaseModel):
    """``[rllib]``: which algorithm, and what it is told."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    algorithm: Literal["SAC", "PPO"]
    """Soft actor-critic (Haarnoja et al. 2018) or proximal policy optimisation (Schulman et al. 2017)."""
    fragment_periods: int | None = Field(default=None, ge=1, le=100_000)
    """Between updates each flow goes on for so many periods; None leaves that to RLlib, whose SAC updates after every
    single one."""
    training: dict[str, Any] = {}
    """Arguments of the algorithm's ``training()``, by RLlib's names; what is not here has RLlib's defaults."""


class PeerConfig(TrainConfig):
    """A whole training run by one of RLlib's algorithms."""

    rllib: RllibSection

    @model_validator(mode="after")
    def _can_learn(self) -> "PeerConfig":
        """Refuses keys without effect, in place of what reinet's own learner refuses: statistics are typical ones here,
        and the replay is RLlib's."""
        without_effect = {
            "hindsight.iterations": self.hindsight.iterations > 0,
            "evolution.generations": self.evolution.generations > 0,
            "ddpg.batch_norm": self.ddpg.batch_norm,
            "calm_rtts": self.calm_rtts > 0,
            "room_beyond_ms": self.room_beyond_ms is not None,
            "ddpg.gru": self.ddpg.gru > 0,
            "curriculum.share": self.curriculum.share > 0,
        }
        for key, given in without_effect.items():
            if given:
                raise ValueError(f"{key} is of reinet's own learner; with [{TABLE}] it has to be 0, false or left out")
        return self


def kind_of(document: Mapping[str, Any]) -> type[TrainConfig]:
    """Returns what a training configuration is to be checked as: a ``PeerConfig`` where it has a table [rllib]."""
    return PeerConfig if TABLE in document else TrainConfig


def load_config(path: Path) -> TrainConfig:
    """Returns the configuration in a TOML file, of its kind; raises ConfigError."""
    hint = "give a training configuration, such as configs/default.toml"
    document = toml_file.read(path, hint)
    return toml_file.check(document, str(path), kind_of(document), hint)

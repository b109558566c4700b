"""What ``SimLink`` and ``KernelLink`` have in common: spaces, info, limits and what they refuse."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space

from reinet.core import DEFAULT_FEATURE_SET, FLOW_STATS_DTYPE, ConfigError, Flag
from reinet.core.features import FEATURE_SETS, FeatureSet, feature_set_named
from reinet.envs.link.spec import check_kind

MOST_EPISODE_S = 1e9
"""Thirty years, after which a path plans nothing (``LATEST_MS``): longer ones do not fit the records' clock."""


def observation_space(feature_set: str = DEFAULT_FEATURE_SET) -> Space[Any]:
    """Returns the space of states: float32 (S,), newest observation first, within the feature set's bounds."""
    chosen = feature_set_named(feature_set)
    return Box(chosen.low(), chosen.high(), dtype=np.float32)


def feature_tables() -> str:
    """Returns the feature sets as text: for each its table of features and what the symbols in it mean."""
    return "\n\n".join(_feature_table(chosen) for chosen in FEATURE_SETS.values())


def _feature_table(chosen: FeatureSet) -> str:
    rows = [("Num", "name", "value", "unit", "bounds")]
    rows += [(str(i), f.name, f.formula, f.unit, f"{f.low:g}, {f.high:g}") for i, f in enumerate(chosen.features)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    head, *body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    about = f"``{chosen.name}``, {chosen.history} observations of {len(chosen.features)} values: {chosen.terms}."
    product = f"The hand rule's product, ``rule_pkts``: {chosen.rule}."
    return "\n".join([textwrap.fill(about, 108), "", rule, head, rule, *body, rule, "", textwrap.fill(product, 108)])


Documented = TypeVar("Documented", bound=type)


def with_feature_tables(documented: Documented) -> Documented:
    """Returns a class with the feature sets' tables in its documentation, in place of the line FEATURE_TABLES."""
    if documented.__doc__ is not None:  # python -OO has none
        found = re.search("^( *)FEATURE_TABLES$", documented.__doc__, re.MULTILINE)
        assert found, f"{documented.__name__} has no line FEATURE_TABLES"
        tables = textwrap.indent(feature_tables(), found[1])
        documented.__doc__ = documented.__doc__.replace(found[0], tables)
    return documented


def action_space() -> Space[Any]:
    """Returns the space of actions: float32 (1,), an a in [-1, 1] of which the head makes a cap in packets."""
    return Box(-1.0, 1.0, (1,), np.float32)


def info_from(stats: np.void, rule_pkts: float, may_cap: bool) -> dict[str, Any]:
    """Returns a record as plain numbers, with ``no_sample`` (bool), ``rule_pkts``, the hand rule's product, and
    ``may_cap`` (bool), False while the flow has shown no queue of its own.
    """
    info: dict[str, Any] = {name: int(stats[name]) for name in FLOW_STATS_DTYPE.names or ()}
    info["no_sample"] = bool(info["flags"] & Flag.NO_SAMPLE)
    info["rule_pkts"] = float(rule_pkts)
    info["may_cap"] = bool(may_cap)
    return info


def action_of(action: npt.ArrayLike) -> float:
    """Returns the number in an action of shape (1,), or a plain one; raises ConfigError if it is none or not finite."""
    values = numbers_in(action)
    if values is None or values.shape != (1,):
        raise ConfigError(f"action: one finite number in [-1, 1] is needed, not {action!r}")
    return float(values[0])


def numbers_in(action: npt.ArrayLike) -> npt.NDArray[np.float32] | None:
    """Returns the numbers in an action, flat; None where something in it is none, is complex or is not finite."""
    try:
        given = np.asarray(action)
        if np.iscomplexobj(given):
            return None
        with np.errstate(over="ignore"):
            values = given.astype(np.float32).ravel()
    except (TypeError, ValueError):
        return None
    return values if np.isfinite(values).all() else None


def refuse_options(name: str, options: Mapping[str, Any] | None) -> None:
    """Raises ConfigError for options of a reset: there are none."""
    if options:
        raise ConfigError(f"options: {name} knows none, {', '.join(options)} among them")


class RenderModeError(ConfigError, TypeError):
    """An environment that draws nothing is asked for a picture.

    It is a TypeError, too, as of an argument that nobody takes: ``make_vec_env`` of stable-baselines3 asks every
    environment for pictures, and after that error alone makes it without.
    """


def refuse_render_mode(name: str, render_mode: str | None) -> None:
    """Raises RenderModeError for any render mode but None, which Gymnasium hands to every environment."""
    if render_mode is not None:
        raise RenderModeError(f"render_mode: {name} draws nothing, so it has no {render_mode!r}; leave it None")


@dataclass(frozen=True)
class EpisodeLimits:
    """When an episode is truncated, None = never. Raises ConfigError for a limit that no episode could have."""

    episode_periods: int | None
    episode_s: float | None

    def __post_init__(self) -> None:
        for name, limit in (("episode_periods", self.episode_periods), ("episode_s", self.episode_s)):
            if limit is not None:
                check_kind(name, limit, Real, "a number, or None for no limit,")
            if limit is not None and not limit > 0:
                raise ConfigError(f"{name}: {limit} is not above 0; give None for no limit")
        if self.episode_s is not None and self.episode_s > MOST_EPISODE_S:
            raise ConfigError(f"episode_s: {self.episode_s} is above {MOST_EPISODE_S:g}; give None for no limit")

    @property
    def episode_ns(self) -> int | None:
        """Returns ``episode_s`` on the records' clock: every environment ends an episode at the same record."""
        return None if self.episode_s is None else round(self.episode_s * 1e9)

    def reached(self, periods: int, elapsed_ns: int) -> bool:
        """Returns whether an episode of so many periods and nanoseconds is over."""
        return (self.episode_periods is not None and periods >= self.episode_periods) or (
            self.episode_ns is not None and elapsed_ns >= self.episode_ns
        )

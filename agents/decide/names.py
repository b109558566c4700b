"""Agents by name: one of ``NAMES``, or the path of a model folder."""

import difflib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from reinet.agents.decide.baselines import (
    Clairvoyant,
    FixedCap,
    NoCap,
    RandomCap,
    Rule,
)
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.roccet import Roccet
from reinet.agents.model.artifact import MANIFEST_FILE
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.errors import ConfigError, unread


class _Kind(NamedTuple):
    """Agents of one kind."""

    forms: tuple[str, ...]
    """They say how it is written; a capital letter stands for a number."""
    make: Callable[[float | None, int], Agent]
    """It makes one of the number, None where none was given, and of a seed."""
    allowed: Callable[[float], bool] = lambda number: False
    """It says whether an agent may have that number."""
    asked_for: str = ""
    """It says which numbers those are."""


_KINDS = {
    "none": _Kind(("none",), lambda _number, _seed: NoCap()),
    "fixed": _Kind(
        ("fixed:N",),
        lambda cap_pkts, _seed: FixedCap(int(cap_pkts or 0)),
        lambda cap_pkts: cap_pkts == int(cap_pkts) and MIN_CAP_PKTS <= cap_pkts <= MAX_CAP_PKTS,
        f"N is a whole number of packets in [{MIN_CAP_PKTS}, {MAX_CAP_PKTS}]",
    ),
    "rule": _Kind(
        ("rule", "rule:G"),
        lambda gain, _seed: Rule() if gain is None else Rule(gain),
        lambda gain: 0 < gain <= 100,
        "G is in (0, 100]; 1 is the bandwidth-delay product",
    ),
    "clairvoyant": _Kind(
        ("clairvoyant:MS",),
        lambda horizon_ms, _seed: Clairvoyant(int(horizon_ms or 0)),
        lambda horizon_ms: horizon_ms == int(horizon_ms) and 0 <= horizon_ms <= 60_000,
        "MS is a horizon of whole milliseconds in [0, 60000]",
    ),
    "random": _Kind(("random",), lambda _number, seed: RandomCap(seed)),
    "roccet": _Kind(("roccet",), lambda _number, _seed: Roccet()),
}
NAMES = tuple(form for kind in _KINDS.values() for form in kind.forms)


def make_agent(name: str, link: str = "sim", seed: int = 0, manifest_sha256: str | None = None) -> Agent:
    """Returns the agent that ``name`` stands for on links of the given kind ("sim", "mahimahi", ...).

    With a digest, a model folder whose manifest is another is refused. Raises ConfigError for a name that stands for
    nothing or has nothing to pin, ModelError for a model folder that must not be loaded.
    """
    agent = _agent(name, seed, manifest_sha256)
    if agent.needs_future and link != "sim":
        raise ConfigError(
            f"agent {name!r} sees a link's future, which only the simulator knows: "
            "name it where links are simulated (--link sim)"
        )
    return agent


def make_agents(names: Sequence[str], link: str = "sim", seed: int = 0) -> list[Agent]:
    """Returns the agents of those names. Raises as ``make_agent`` and ``refuse_twice`` do."""
    made = [make_agent(name, link, seed) for name in names]
    refuse_twice(made)
    return made


def refuse_twice(agents: Sequence[Agent]) -> None:
    """Raises ConfigError for an agent under two names (rule, rule:1.5; one folder by two paths): its runs would be
    counted twice."""
    first: dict[str, Agent] = {}
    for agent in agents:
        other = first.setdefault(place_of(agent), agent)
        if other is not agent:
            beside = "" if other.name == agent.name else f", {agent.name} too"
            raise ConfigError(f"agents: two names stand for {other.name}{beside}; give every agent once")


def place_of(agent: Agent) -> str:
    """Returns what all names of one agent have in common: a model's folder, whatever the path to it, else its name."""
    return agent.name if agent.manifest is None else os.path.realpath(agent.name)


def _agent(name: str, seed: int, manifest_sha256: str | None) -> Agent:
    word, colon, argument = name.partition(":")
    if word not in _KINDS or "/" in name:
        return _model(name, manifest_sha256)
    if manifest_sha256 is not None:
        raise ConfigError(f"agent {name!r}: only a model folder has a manifest whose digest can be pinned")
    kind = _KINDS[word]
    if not colon and word in kind.forms:
        return kind.make(None, seed)
    usage = f"write it as {' or '.join(kind.forms)}"
    if not argument or kind.forms == (word,):
        raise ConfigError(f"agent {name!r}: {usage}")
    number = _number(argument)
    if not math.isfinite(number):
        raise ConfigError(f"agent {name!r}: {usage}, with a plain number")
    if not kind.allowed(number):
        raise ConfigError(f"agent {name!r}: {kind.asked_for}")
    return kind.make(number, seed)


def split_names(names: str) -> list[str]:
    """Returns the parts of ``"none,rule:1.25,checkpoints/default"``; raises ConfigError for empty or repeated ones."""
    parts = [part.strip() for part in names.split(",")]
    for index, part in enumerate(parts):
        if not part:
            raise ConfigError(f"agents {names!r}: part {index + 1} is empty; separate names by single commas")
        if part in parts[:index]:
            raise ConfigError(f"agents {names!r}: {part!r} appears twice; give every agent once")
    return parts


def _model(name: str, manifest_sha256: str | None) -> Agent:
    folder = Path(name)
    try:
        is_model, is_there = (folder / MANIFEST_FILE).is_file(), bool(name) and folder.exists()
    except OSError as error:  # a folder that is closed to whoever asks, or a name that no folder can have
        raise ConfigError(f"agent {name!r}: {unread(error)}") from None
    if is_model:
        return Policy.load(folder, manifest_sha256)
    if is_there:
        raise ConfigError(f"agent {name!r}: not a model folder, it has no {MANIFEST_FILE}; `reinet export` makes one")
    if "/" in name:
        near = "" if folder.is_absolute() else " in the working directory"
        raise ConfigError(
            f"agent {name!r}: there is no such folder{near}; name a model's, as `reinet export` makes one"
        )
    kind = name.partition(":")[0]
    close = difflib.get_close_matches(kind, _KINDS, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"agent {name!r}: neither a folder nor one of {', '.join(NAMES)}{hint}")


def _number(argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        return math.nan

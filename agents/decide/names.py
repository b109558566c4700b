"""Agents by name: ``none``, ``fixed:N``, ``rule[:G]``, ``clairvoyant:MS``, ``random``, ``roccet`` or a model folder."""

import difflib
import math
from pathlib import Path

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
from reinet.core.errors import ConfigError

NAMES = ("none", "fixed:N", "rule", "rule:G", "clairvoyant:MS", "random", "roccet")
_KINDS = {"none": False, "fixed": True, "rule": True, "clairvoyant": True, "random": False, "roccet": False}
"""Kind -> whether it takes an argument."""


def make_agent(name: str, link: str = "sim", seed: int = 0, manifest_sha256: str | None = None) -> Agent:
    """Returns the agent that ``name`` stands for on links of the given kind ("sim", "mahimahi", ...).

    With a digest, a model folder whose manifest is another is refused. Raises ConfigError for a name that stands for
    nothing or has nothing to pin, ModelError for a model folder that must not be loaded.
    """
    agent = _agent(name, seed, manifest_sha256)
    if agent.needs_future and link != "sim":
        raise ConfigError(f"agent {name!r} sees a link's future, which only the simulator knows: use --link sim")
    return agent


def _agent(name: str, seed: int, manifest_sha256: str | None) -> Agent:
    kind, colon, argument = name.partition(":")
    if kind not in _KINDS or _is_path(name):
        return _model(name, manifest_sha256)
    if manifest_sha256 is not None:
        raise ConfigError(f"agent {name!r}: only a model folder has a manifest whose digest can be pinned")
    if colon and not (_KINDS[kind] and argument):
        raise ConfigError(f"agent {name!r}: {_usage(kind)}")
    if kind == "none":
        return NoCap()
    if kind == "random":
        return RandomCap(seed)
    if kind == "roccet":
        return Roccet()
    if kind == "rule" and not colon:
        return Rule()
    value = _number(name, kind, argument)
    if kind == "fixed":
        if value != int(value) or not MIN_CAP_PKTS <= value <= MAX_CAP_PKTS:
            raise ConfigError(f"agent {name!r}: N is a whole number of packets in [{MIN_CAP_PKTS}, {MAX_CAP_PKTS}]")
        return FixedCap(int(value))
    if kind == "rule":
        if not 0 < value <= 100:
            raise ConfigError(f"agent {name!r}: G is in (0, 100]; 1 is the bandwidth-delay product")
        return Rule(value)
    if value != int(value) or not 0 <= value <= 60_000:
        raise ConfigError(f"agent {name!r}: MS is a horizon of whole milliseconds in [0, 60000]")
    return Clairvoyant(int(value))


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
    if (folder / MANIFEST_FILE).is_file():
        return Policy.load(folder, manifest_sha256)
    if name and folder.exists():
        raise ConfigError(f"agent {name!r}: not a model folder, it has no {MANIFEST_FILE}; `reinet export` makes one")
    kind = name.partition(":")[0]
    close = difflib.get_close_matches(kind, _KINDS, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"agent {name!r}: neither a folder nor one of {', '.join(NAMES)}{hint}")


def _is_path(name: str) -> bool:
    return "/" in name


def _usage(kind: str) -> str:
    forms = [form for form in NAMES if form.partition(":")[0] == kind]
    return f"write it as {' or '.join(forms)}"


def _number(name: str, kind: str, argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"agent {name!r}: {_usage(kind)}, with a plain number")
    return value

"""What a suite's file says: a title, and scenarios of agents, congestion controls, traces, a path and what is swept."""

import hashlib
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reinet.agents.evaluation.scenario import LINK_OPTIONS, LinkKind
from reinet.core import toml_file
from reinet.core.errors import ConfigError

FOLDER = Path(__file__).parents[3] / "configs" / "suites"
"""Where the project's own suites lie, in an installed package as in a checkout."""
CURE = "name a suite (quick, reinet, deepcc) or a suite's TOML file; docs/evaluation.md tells how to write one"

DERIVED = ("target", "target_ms", "buffer_bdp", "buffer_peak_ms", "app_share", "look_phase_s")
"""What a path may say beside the fields of ``LinkSpec``: each is worked out from the trace, the fixed delay or the
flows' look for their minimum RTT."""
NUMBERS = ("target_ms", "mrtt_ms", "buffer_bdp", "buffer_peak_ms", "app_share")
"""Those that are above 0, from which others are worked out before the link checks them."""
PATH_KEYS = (*DERIVED, "mrtt_ms", "buffer_bytes", *LINK_OPTIONS)

MOST_SEEDS = 1000
"""More repetitions than that of one cell tell nothing more of a mean."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NotCompared(_Strict):
    """A scheme that a reader may look for, and why it is not in the tables."""

    name: str = Field(description="what it is called")
    reason: str = Field(description="why it is not compared")


class ScenarioSpec(_Strict):
    """One table of the report. Its cells are all combinations; each runs ``repeat`` times, on the same seeds."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="a short name in small letters, digits and dashes")
    about: str = Field("", description="what the scenario asks, for the report")
    link: LinkKind = Field("sim", description="sim, or mahimahi: real kernel sockets, one flow a run")
    agents: tuple[str, ...] = Field(("none",), description="agents by name or model folder; none is the baseline")
    cc: tuple[str, ...] = Field(("cubic",), description="congestion controls that every agent stands over")
    plain: tuple[str, ...] = Field((), description="congestion controls and peers that run without a cap only")
    traces: tuple[str, ...] = Field(
        ("lte-stationary", "lte-walking", "lte-driving"),
        description="presets that are generated, constant:MBPS, or trace files, folders and set files",
    )
    trace_seconds: float = Field(120.0, gt=0, le=3600, description="length of what is generated")
    seconds: float = Field(30.0, gt=0, le=3600, description="length of a run, from the start of its last flow")
    repeat: int = Field(3, ge=1, le=MOST_SEEDS, description="repetitions: other seeds, other places in the trace")
    random_start: bool = Field(True, description="repetitions after the first start anywhere in their trace")
    path: dict[str, Any] = Field({}, description="fields of the path that all cells share")
    sweep: dict[str, list[Any]] = Field({}, description="fields of the path with a list of values each")
    flows: tuple[int, ...] = Field((1,), description="numbers of flows of the agent in one queue")
    flow_start_s: float = Field(0.0, ge=0, le=3600, description="how much later each flow starts than the one before")
    beside: tuple[str, ...] = Field((), description="plain flows to share the queue with, one at a time")

    @field_validator("agents")
    @classmethod
    def _repeatable(cls, agents: tuple[str, ...]) -> tuple[str, ...]:
        if "random" in agents:
            raise ValueError("random draws for all links of a batch at once, so its runs could not be resumed")
        return agents

    @field_validator("flows")
    @classmethod
    def _some(cls, flows: tuple[int, ...]) -> tuple[int, ...]:
        if not flows or not all(1 <= count <= 1000 for count in flows):
            raise ValueError(f"{flows} are no numbers of flows; give 1 to 1000")
        return flows

    @model_validator(mode="after")
    def _sound(self) -> "ScenarioSpec":
        for key in (*self.path, *self.sweep):
            if key not in PATH_KEYS:
                raise ValueError(f"path and sweep have no {key!r}; there are {', '.join(PATH_KEYS)}")
        if both := sorted(set(self.path) & set(self.sweep)):
            raise ValueError(f"{', '.join(both)} stands in path and in sweep; give it once")
        if empty := [key for key, values in self.sweep.items() if not values]:
            raise ValueError(f"sweep.{empty[0]} has no values")
        for key, value in (*self.path.items(), *((key, one) for key, values in self.sweep.items() for one in values)):
            _check(key, value)
        lists = {key: getattr(self, key) for key in ("agents", "cc", "plain", "flows", "beside")}
        for key, values in (lists | {f"sweep.{key}": values for key, values in self.sweep.items()}).items():
            if twice := [value for value in values if values.count(value) > 1]:  # its runs would be counted twice
                raise ValueError(f"{key}: {twice[0]!r} is there twice; give it once")
        if self.link == "mahimahi" and (self.flows != (1,) or self.beside):
            raise ValueError("flows and beside need link = 'sim': a Mahimahi link here carries one flow")
        for name, fields in (("path", self.path), ("sweep", self.sweep)):
            if "flows" in fields and (self.flows != (1,) or self.beside):
                raise ValueError(f"{name}.flows says each flow by itself; leave out flows and beside")
        if not (self.agents and self.cc) and not self.plain:
            raise ValueError("nothing runs: give agents and cc, or plain")
        return self


def _check(key: str, value: Any) -> None:
    """Raises ValueError for a value of a path that nothing can be worked out from; ``LinkSpec`` checks the others."""
    if key == "target" and not isinstance(value, str):
        raise ValueError(f"target = {value!r} is no text; write it as '50ms', '+30ms' or '2.5x'")
    if key in NUMBERS and not (_is_number(value) and value > 0):
        raise ValueError(f"{key} = {value!r} is no number above 0")
    if key == "flows" and not (
        isinstance(value, list)
        and all(isinstance(flow, dict) and _is_number(flow.get("start_ms", 0)) for flow in value)
    ):
        raise ValueError("path.flows is a list of tables, one a flow, with numbers as start_ms")


def _is_number(value: Any) -> bool:
    # TOML has whole numbers of any length, and what follows is worked out in doubles.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


class _File(_Strict):
    title: str = Field(description="what the report is called")
    about: str = Field("", description="what the suite is for")
    seed: int = Field(1, ge=0, description="of the order of the runs and of every run's own seed and start")
    scenario: list[dict[str, Any]] = Field(min_length=1, description="at least one [[scenario]]")
    not_compared: tuple[NotCompared, ...] = ()


class Suite(_Strict):
    """A suite, read and checked."""

    name: str
    title: str
    about: str
    seed: int
    scenarios: tuple[ScenarioSpec, ...]
    not_compared: tuple[NotCompared, ...]
    sha256: str
    """Of the file's bytes."""


def shipped() -> list[str]:
    """Returns the names of the project's own suites."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(name: str) -> Path:
    """Returns the file of a suite by its name, or of a path as it is; raises ConfigError."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    if (FOLDER / f"{name}.toml").is_file():
        return FOLDER / f"{name}.toml"
    raise ConfigError(f"suite {name!r}: there are {', '.join(shipped())}; {CURE}")


def load(name: str) -> Suite:
    """Returns a suite by its name or file; raises ConfigError with every fault and its place."""
    path = find(name)
    document = toml_file.read(path, CURE)
    file = toml_file.check(document, str(path), _File, CURE)
    scenarios = tuple(
        toml_file.check(given, f"{path}: scenario {given.get('name', number + 1)}", ScenarioSpec, CURE)
        for number, given in enumerate(file.scenario)
    )
    names = [scenario.name for scenario in scenarios]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ConfigError(f"{path}: scenario {twice[0]} is there twice; every name is a table of its own")
    return Suite(
        name=path.stem,
        title=file.title,
        about=file.about,
        seed=file.seed,
        scenarios=scenarios,
        not_compared=file.not_compared,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )

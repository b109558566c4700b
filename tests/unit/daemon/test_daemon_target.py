"""What the daemon says at its start of a target that its model was not trained for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from helpers.daemons import agent_of
from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.daemon import serve
from reinet.daemon.config import DaemonConfig
from reinet.daemon.reload import policy_specs

MODEL = str(ROOT / "checkpoints" / "default")
"""It was trained for RTTs of 19 to 160 ms, 15 to 80 ms above the minimum RTT."""
NOT_TRAINED = "the model was not trained for this target"


@pytest.fixture(autouse=True)
def _a_process_that_has_said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_SAID", set())


def warned(model: str = MODEL, **target: object) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as seen:
        config = DaemonConfig(model=model, cgroups=(Path("/x"),), **target)  # type: ignore[arg-type]
        policy_specs(config, agent_of(config), serve.agent_for)
    return [{**entry} for entry in seen if entry["log_level"] == "warning"]


@pytest.mark.parametrize(
    "target", [{}, {"target": "+15ms"}, {"target": "+80ms"}, {"target": "160ms"}, {"target_ms": 19.0}]
)
def test_a_target_that_the_model_was_trained_for_needs_no_word(target: dict[str, object]) -> None:
    assert warned(**target) == []


@pytest.mark.parametrize(
    ("target", "trained_ms"),
    [
        ("290ms", (19.0, 280.0)),
        ("15ms", (19.0, 280.0)),
        ("+100ms", (15.0, 80.0)),  # as an RTT it would be within
        ("+5ms", (15.0, 80.0)),
    ],
)
def test_an_absolute_target_goes_by_its_rtt_and_one_above_the_path_by_what_it_adds(
    target: str, trained_ms: tuple[float, float]
) -> None:
    (entry,) = warned(target=target)
    assert (entry["event"], entry["target"], entry["trained_ms"]) == (NOT_TRAINED, target, trained_ms)


def test_a_multiple_fits_paths_of_some_lengths_only_and_the_daemon_says_which() -> None:
    (entry,) = warned(target="2.5x")
    assert entry["event"] == "the model was trained for this target on some paths only"
    assert (entry["target"], entry["trained_queueing_ms"]) == ("2.5x", (15.0, 80.0))
    assert np.allclose(entry["paths_ms"], (10.0, 53.3))  # where 1.5 times the path is 15 and 80 ms


def test_many_policies_of_one_model_and_target_are_one_line() -> None:
    """A hundred policies made a hundred and one of them."""
    policies = [
        {"name": f"{port}", "local_ports": [port], "target": target}
        for port, target in enumerate([None, "+100ms", "+5ms", "+5ms", "+30ms"], 80)
    ]
    assert [entry["target"] for entry in warned(target="+100ms", policies=policies)] == ["+100ms", "+5ms"]


@pytest.mark.parametrize("target", ["5ms", "+5ms", "100x"])
def test_an_agent_that_was_not_trained_takes_any_target(target: str) -> None:
    assert make_agent("rule").queueing_target_range_ms is None
    assert warned("rule", target=target) == []

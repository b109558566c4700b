"""Which checkpoint is the best: one that does harm only where there is no other, else the score decides."""

from typing import Any

import pytest

from reinet.agents.evaluation import no_harm
from reinet.agents.evaluation.no_harm import Harm
from reinet.agents.learn import train as module
from reinet.agents.learn.checkpoint import Best
from reinet.agents.learn.config import TrainConfig

FINE = Harm(True, 144, 0, (), 1.1)
HARMFUL = Harm(False, 144, 1, ("bbr, lte, 20 ms, 10000 bytes fresh: 1.40 / 1.90",), 1.5, "1.25 times is the most")
GOOD, BAD = Best(iteration=1, score=-1.0, metrics={}), Best(iteration=1, score=-1.0, metrics={}, harms="harm: ...")


def asked(monkeypatch: pytest.MonkeyPatch, before: Best | None, score: float, harm: Harm) -> Best | None:
    def measure(*_: Any) -> Harm:
        return harm

    monkeypatch.setattr(no_harm, "measure", measure)
    return module.chosen(before, 2, {"score": score}, None, TrainConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "score", "harm", "taken"),
    [
        (None, -9.0, HARMFUL, True),
        (GOOD, -0.5, FINE, True),
        (GOOD, -1.5, FINE, False),
        (GOOD, -0.5, HARMFUL, False),
        (BAD, -1.5, FINE, True),
        (BAD, -0.5, HARMFUL, True),
        (BAD, -1.5, HARMFUL, False),
    ],
)
def test_one_that_does_harm_gives_way_to_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, before: Best | None, score: float, harm: Harm, taken: bool
) -> None:
    assert (asked(monkeypatch, before, score, harm) is not None) is taken


def test_the_record_has_the_figures_and_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, None, -1.0, HARMFUL)
    assert found is not None
    assert found.metrics["harm_failed"] == 1
    assert "bbr, lte, 20 ms, 10000 bytes fresh" in found.harms
    fine = asked(monkeypatch, None, -1.0, FINE)
    assert fine is not None
    assert (fine.harms, fine.metrics["harm_ok"]) == ("", 1.0)


def test_nothing_is_measured_of_a_checkpoint_that_cannot_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any) -> Harm:
        raise AssertionError

    monkeypatch.setattr(no_harm, "measure", measure)
    assert module.chosen(GOOD, 2, {"score": -1.0}, None, TrainConfig()) is None  # type: ignore[arg-type]

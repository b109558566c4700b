"""A daemon that follows a name: it gets every model once, checked; the service being away changes nothing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from helpers.registry import FIRST, SECOND, Host, hurry
from helpers.waiting import wait_for
from reinet.agents.model.artifact import load_artifact
from reinet.core.errors import ModelError
from reinet.daemon import registry
from reinet.daemon.registry import Address, Follower, fetch, last_known
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc


class Aborted(grpc.RpcError):
    """A call that ended in its middle."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    def details(self) -> str:
        return "went away"


class Away(Aborted):
    """A service that restarts."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "s")
    yield made
    made.down()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


class Daemon:
    """What follows, and what it swapped in."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.swapped: list[tuple[Path, str]] = []
        self.refuse = self.late = self.hangs = ""
        address = Address(f"unix:{host.socket}")
        self.follower = Follower(address, "production", "host-1", folder, self.swap, "1.0", self.figures)
        self.follower.start()

    def figures(self) -> dict[str, float]:
        if self.hangs:
            raise TimeoutError(self.hangs)
        return {"kept": 0.97}

    def swap(self, folder: Path, sha256: str) -> None:
        if self.refuse:
            raise ModelError(self.refuse)
        self.swapped.append((folder, sha256))
        if sha256 == self.late:
            raise TimeoutError("the decision process did not answer within 3 s")

    def models(self) -> list[str]:
        return [sha256 for _, sha256 in self.swapped]


@pytest.fixture
def daemon(host: Host, tmp_path: Path, impatient: None) -> Iterator[Daemon]:
    made = Daemon(host, tmp_path / "models")
    yield made
    made.follower.close()


def test_every_promotion_is_swapped_in_once_and_reported(host: Host, daemon: Daemon, tmp_path: Path) -> None:
    wait_for(lambda: daemon.models() == [FIRST])
    host.models.move(SECOND)
    wait_for(lambda: daemon.models() == [FIRST, SECOND])
    wait_for(lambda: host.models.reports and host.models.reports[-1].model == SECOND)
    report = host.models.reports[-1]
    assert (report.daemon, report.name, report.version, dict(report.figures)) == (
        "host-1", "production", "1.0", {"kept": 0.97},
    )  # fmt: skip
    folder, sha256 = daemon.swapped[-1]
    assert load_artifact(folder, sha256).manifest_sha256 == SECOND
    assert last_known(tmp_path / "models", "production") == tmp_path / "models" / SECOND


def test_a_service_that_is_away_changes_nothing_and_is_found_again(host: Host, daemon: Daemon) -> None:
    wait_for(lambda: daemon.models() == [FIRST])
    host.down()
    wait_for(lambda: daemon.follower.problem)
    assert daemon.models() == [FIRST]
    assert "no training service answers" in daemon.follower.problem
    host.models.move(SECOND)
    host.up()
    wait_for(lambda: daemon.models() == [FIRST, SECOND])
    assert not daemon.follower.problem


def test_a_service_that_is_away_for_a_day_changes_nothing(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pause of a day, taken at once; what it asks meanwhile stays with a call a minute."""
    daemon = Daemon(host, tmp_path / "models")
    wait_for(lambda: daemon.models() == [FIRST])
    host.down()
    wait_for(lambda: daemon.follower.problem)
    pauses: list[float] = []
    threads = threading.active_count()
    monkeypatch.setattr(daemon.follower._stop, "wait", lambda seconds: pauses.append(seconds))
    wait_for(lambda: sum(pauses) > 86_400, 300)
    monkeypatch.setattr(daemon.follower._stop, "wait", lambda _seconds: time.sleep(0.05))  # a pause of a minute is over
    assert daemon.models() == [FIRST]
    assert last_known(tmp_path / "models", "production") == tmp_path / "models" / FIRST
    assert "no training service answers" in daemon.follower.problem
    assert len(pauses) < 1.2 * 86_400 / registry.MOST_PAUSE_S
    assert threading.active_count() < threads + 10, "nothing of some 1400 calls piles up"
    host.models.move(SECOND)
    host.up()
    wait_for(lambda: daemon.models() == [FIRST, SECOND], 90)
    daemon.follower.close()


def test_streams_that_break_after_they_were_heard_cost_the_first_pause_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service restarts now and then; the seventh time its daemons stayed away for a minute."""

    class Breaking(list[pb.Pointer]):
        def __iter__(self) -> Iterator[pb.Pointer]:
            yield pb.Pointer(name="production", number=1)
            raise Away

        def cancel(self) -> None: ...

    pauses: list[float] = []
    address = SimpleNamespace(channel=lambda: SimpleNamespace(close=lambda: None), target="x")
    stub = SimpleNamespace(Follow=lambda _request: Breaking(), Report=lambda _request, timeout: None)
    monkeypatch.setattr(registry, "stub_of", lambda _channel: stub)
    monkeypatch.setattr(registry.random, "uniform", lambda _low, _high: 1.0)
    follower = Follower(cast(Address, address), "production", "host-1", tmp_path, lambda _folder, _sha256: None)
    monkeypatch.setattr(follower._stop, "wait", lambda seconds: (pauses.append(seconds), time.sleep(0.01)))
    follower.start()
    wait_for(lambda: len(pauses) > 8)
    follower.close()
    assert set(pauses) == {registry.FIRST_PAUSE_S}
    assert "no training service answers" in follower.problem


def test_without_streams_it_polls(host: Host, daemon: Daemon) -> None:
    host.models.streams = False
    host.down()
    host.models.move(SECOND)
    host.up()
    wait_for(lambda: daemon.models()[-1:] == [SECOND])


def test_a_service_that_answers_polls_alone_is_no_failure_and_is_asked_at_one_pace(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.models.streams = False
    pauses: list[float] = []
    monkeypatch.setattr(registry.random, "uniform", lambda _low, _high: 1.0)
    monkeypatch.setattr(registry, "POLL_S", 20.0)
    daemon = Daemon(host, tmp_path / "models")
    stop = daemon.follower._stop
    monkeypatch.setattr(stop, "wait", lambda seconds: pauses.append(seconds))
    wait_for(lambda: len(pauses) > 6)
    problem = daemon.follower.problem
    monkeypatch.undo()
    daemon.follower.close()
    assert set(pauses[1:]) == {20.0}
    assert not problem


def test_a_name_that_points_to_nothing_changes_nothing(host: Host, daemon: Daemon) -> None:
    wait_for(lambda: daemon.models() == [FIRST])
    host.models.move("")
    before = len(host.models.reports)
    wait_for(lambda: len(host.models.reports) > before + 2)
    assert daemon.models() == [FIRST]


def test_a_service_that_is_back_without_what_it_knew_is_not_reported_as_away(host: Host, daemon: Daemon) -> None:
    """The fleet's list, which that service itself makes, said for ever that no service answers."""
    wait_for(lambda: daemon.models() == [FIRST])
    host.down()
    wait_for(lambda: "no training service answers" in daemon.follower.problem)
    host.models.move("")
    host.models.reports.clear()
    host.up()
    wait_for(lambda: any("points to no model, so this one stays" in one.problem for one in host.models.reports))
    assert daemon.models() == [FIRST]


def test_a_model_that_the_swap_refuses_is_reported_and_tried_again(host: Host, daemon: Daemon) -> None:
    wait_for(lambda: daemon.models() == [FIRST])
    daemon.refuse = "the canary\nwas worse"
    host.models.move(SECOND)
    wait_for(lambda: host.models.reports and host.models.reports[-1].problem == "the canary was worse")
    assert host.models.reports[-1].model == FIRST
    daemon.refuse = ""
    wait_for(lambda: daemon.models() == [FIRST, SECOND])


def test_a_swap_whose_answer_came_too_late_is_undone_where_the_name_goes_back(host: Host, daemon: Daemon) -> None:
    wait_for(lambda: daemon.models() == [FIRST])
    daemon.late = SECOND
    host.models.move(SECOND)
    wait_for(lambda: host.models.reports and "did not answer" in host.models.reports[-1].problem)
    assert host.models.reports[-1].model == FIRST, "the last of which is known that it was swapped in"
    host.models.move(FIRST)
    wait_for(lambda: daemon.models()[-1] == FIRST)
    wait_for(lambda: host.models.reports[-1].model == FIRST and not host.models.reports[-1].problem)


def test_a_daemon_whose_decision_process_does_not_answer_reports_that(host: Host, daemon: Daemon) -> None:
    """It kept silent, and dropped its stream at each sign of life: the list had what it reported last."""
    wait_for(lambda: host.models.reports and daemon.models() == [FIRST])
    daemon.hangs = "the decision process did not answer within 3 s"
    wait_for(lambda: "did not answer" in host.models.reports[-1].problem)
    host.models.move(SECOND)
    wait_for(lambda: host.models.reports[-1].model == SECOND)
    assert not host.models.reports[-1].figures
    daemon.hangs = ""
    wait_for(lambda: host.models.reports[-1].figures and not host.models.reports[-1].problem)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (OSError(28, "No space left on device"), "No space left"),
        (Aborted(), "went away (ABORTED)"),
        (IndexError("of a model that no check foresaw"), "IndexError('of a model that no check foresaw')"),
    ],
    ids=["a disk", "a fetch", "an oversight"],
)
def test_a_model_that_cannot_be_fetched_is_reported_and_tried_again(
    host: Host, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, trouble: Exception, said: str
) -> None:
    wait_for(lambda: host.models.reports and daemon.models() == [FIRST])

    def fails(*_arguments: object) -> Path:
        raise trouble

    with monkeypatch.context() as patched:
        patched.setattr(registry, "fetch", fails)
        host.models.move(SECOND)
        wait_for(lambda: host.models.reports[-1].problem)
        report = host.models.reports[-1]
        assert report.model == FIRST
        assert said in report.problem
    wait_for(lambda: daemon.models() == [FIRST, SECOND])
    wait_for(lambda: host.models.reports[-1].model == SECOND and not host.models.reports[-1].problem)


def test_a_name_that_cannot_be_written_down_is_reported(host: Host, daemon: Daemon, tmp_path: Path) -> None:
    wait_for(lambda: host.models.reports and daemon.models() == [FIRST])
    (tmp_path / "models" / "production.sha256").unlink()
    (tmp_path / "models" / "production.sha256").mkdir()
    host.models.move(SECOND)
    wait_for(lambda: host.models.reports[-1].model == SECOND and "Is a directory" in host.models.reports[-1].problem)


@pytest.mark.parametrize("data", [b"", bytes(64), b"\xff\xfe", b"0" * 5000, b"..\n"], ids=repr)
def test_a_damaged_note_of_what_was_known_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "production.sha256").write_bytes(data)
    assert last_known(tmp_path, "production") is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda name, data: (name, data[:-1] + b"x"),
        lambda name, data: ("../x" if name == "README.md" else name, data),
        lambda name, data: ("manifest.json", data),
        lambda name, data: ("" if name == "manifest.json" else name, data),
        lambda name, data: (name, data + b"x" * 1_000_000),
    ],
    ids=["other bytes", "a path", "a file twice", "bytes of no file", "more bytes"],
)
def test_what_is_not_the_model_is_not_taken(host: Host, tmp_path: Path, spoil: Any) -> None:
    host.models.spoil = spoil
    with grpc.insecure_channel(f"unix:{host.socket}") as channel:
        stub: Any = trainer_pb2_grpc.ModelsStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(ModelError):
            fetch(stub, FIRST, tmp_path / "models")
        assert not list(tmp_path.glob("models/*"))
        with pytest.raises(ModelError, match="is no sha256"):
            fetch(stub, "../../x", tmp_path / "models")
        host.models.spoil = lambda name, data: (name, data)
        assert fetch(stub, FIRST, tmp_path / "models").name == FIRST
    assert not list(tmp_path.glob("x"))

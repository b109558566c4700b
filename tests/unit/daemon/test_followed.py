"""``model = "registry:NAME"``: where a daemon's first model comes from, and what becomes of the later ones."""

import errno
import math
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from helpers.daemons import agent_of
from helpers.loops import HEALTHY, started
from helpers.models import edit_manifest
from helpers.registry import FIRST, FOLDERS, SECOND, Host, hurry
from helpers.waiting import wait_for
from reinet.agents.decide.active_policy import PolicyStatus
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.evidence import Comparison, Ratio
from reinet.agents.decide.loop import Status
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.protocol import Agent
from reinet.agents.model.artifact import MODEL_FILES
from reinet.core.errors import ConfigError, DaemonError, ModelError
from reinet.core.target import Target
from reinet.daemon import followed, registry
from reinet.daemon.config import DaemonConfig, RegistryConfig
from reinet.daemon.followed import follow, hold_out_figures, resolved
from reinet.daemon.policies import PolicyConfig
from reinet.daemon.processes import child
from reinet.daemon.processes.asked import Asked
from reinet.daemon.processes.decide import Followed, _Kept
from reinet.daemon.reload import Reloader
from reinet.daemon.serve import agent_for


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "s")
    yield made
    made.down()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def config(host: Host, folder: Path) -> DaemonConfig:
    where = RegistryConfig(address=f"unix:{host.socket}", folder=folder / "models", called="host-1")
    return DaemonConfig(model="registry:production", cgroups=(folder,), registry=where)


class Loop:
    """What takes other models, or refuses them."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.refusal = ""

    def take(self, folder: Path, sha256: str) -> None:
        if self.refusal:
            raise ModelError(self.refusal)
        assert folder.name == sha256
        self.digests.append(sha256)


def test_the_first_model_is_what_the_name_points_to(host: Host, tmp_path: Path) -> None:
    found = resolved(config(host, tmp_path))
    assert Path(found.model).name == FIRST
    agent = agent_of(found)
    assert isinstance(agent, Policy)
    assert agent.artifact.manifest_sha256 == FIRST


def test_a_configuration_with_a_model_of_its_own_asks_nobody(tmp_path: Path) -> None:
    own = DaemonConfig(model="rule", cgroups=(tmp_path,))
    assert resolved(own) is own
    follow(own, "", lambda _folder, _sha256: None)()


def test_without_a_service_it_starts_with_what_it_last_heard_of(host: Host, tmp_path: Path) -> None:
    settings, loop = config(host, tmp_path), Loop()
    end = follow(settings, Path(resolved(settings).model).name, loop.take)
    host.models.move(SECOND)
    wait_for(lambda: loop.digests == [SECOND])
    wait_for(lambda: (tmp_path / "models" / "production.sha256").exists())
    end()
    host.down()
    assert Path(resolved(settings, wait_s=0.0).model).name == SECOND


def knows_the_second_and_is_to_fetch_the_first(host: Host, folder: Path) -> DaemonConfig:
    settings = config(host, folder)
    host.models.move(SECOND)
    end = follow(settings, "", lambda _folder, _sha256: None)
    wait_for(lambda: (folder / "models" / "production.sha256").exists())
    end()
    host.models.move(FIRST)
    shutil.rmtree(folder / "models" / FIRST, ignore_errors=True)
    return settings


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_no_model_leaves_the_last_one_and_the_reason_is_told(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object, **_more: object) -> None:
        raise OSError(number, "that disk")

    settings = knows_the_second_and_is_to_fetch_the_first(host, tmp_path)
    monkeypatch.setattr(registry, "write_folder", fails)
    with capture_logs() as logged:
        assert Path(resolved(settings, wait_s=0.0).model).name == SECOND
    (entry,) = logged
    assert "that disk" in entry["why"]
    assert "answer" not in entry["event"]
    shutil.rmtree(tmp_path / "models" / SECOND)
    with pytest.raises(DaemonError, match="that disk"):
        resolved(settings, wait_s=0.0)


def test_a_service_that_stalls_in_the_middle_of_a_model_leaves_the_last_one_in_time(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stalls(name: str, data: bytes) -> tuple[str, bytes]:
        go_on.wait(60)
        return name, data

    go_on = threading.Event()
    settings = knows_the_second_and_is_to_fetch_the_first(host, tmp_path)
    host.models.spoil = stalls
    monkeypatch.setattr(registry, "FETCH_S", 60.0)
    assert followed.WAIT_S + followed.ASK_S + followed.FETCH_S < child.STARTING_S - 5, "or the loader hears no reason"
    monkeypatch.setattr(followed, "FETCH_S", 0.5)
    begun_s = time.monotonic()
    try:
        assert Path(resolved(settings, wait_s=0.0).model).name == SECOND
    finally:
        go_on.set()
    assert time.monotonic() - begun_s < 30


def test_where_no_model_is_known_a_slow_path_has_the_rest_of_the_start_for_the_first_one(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    def slowly(name: str, data: bytes) -> tuple[str, bytes]:
        begun.append(time.monotonic())
        time.sleep(0.6)
        return name, data

    host.models.spoil = slowly
    monkeypatch.setattr(registry, "FETCH_S", 60.0)
    monkeypatch.setattr(followed, "FETCH_S", 0.5)
    assert Path(resolved(config(host, tmp_path), wait_s=20.0).model).name == FIRST
    assert len(begun) == len(MODEL_FILES), "in one go"
    shutil.rmtree(tmp_path / "models")
    with pytest.raises(DaemonError, match="no answer in time"):
        resolved(config(host, tmp_path), wait_s=0.0)


def test_without_a_service_and_without_a_past_it_does_not_start(host: Host, tmp_path: Path) -> None:
    host.down()
    with pytest.raises(DaemonError, match="no training service answers"):
        resolved(config(host, tmp_path), wait_s=0.0)


def test_a_name_that_points_to_nothing_is_no_model(host: Host, tmp_path: Path) -> None:
    host.models.move("")
    with pytest.raises(DaemonError, match="points to no model yet"):
        resolved(config(host, tmp_path), wait_s=0.0)


def test_every_later_model_is_swapped_in_and_going_back_too(host: Host, tmp_path: Path) -> None:
    settings, loop = config(host, tmp_path), Loop()
    end = follow(settings, Path(resolved(settings).model).name, loop.take)
    wait_for(lambda: host.models.reports and host.models.reports[-1].model == FIRST)
    assert loop.digests == [], "it runs that one already"
    for wanted in ([SECOND], [SECOND, FIRST]):
        host.models.move(wanted[-1])
        wait_for(lambda wanted=wanted: loop.digests == wanted)
    end()


def test_what_is_not_taken_up_is_reported_with_the_reason(host: Host, tmp_path: Path) -> None:
    settings, loop = config(host, tmp_path), Loop()
    loop.refusal = "answers with no numbers"
    end = follow(settings, Path(resolved(settings).model).name, loop.take)
    host.models.move(SECOND)
    wait_for(lambda: host.models.reports and loop.refusal in host.models.reports[-1].problem)
    assert host.models.reports[-1].model == FIRST
    end()


def test_a_name_of_a_registry_cannot_be_pinned_for_it_names_other_models_in_time(tmp_path: Path) -> None:
    where = RegistryConfig(address="unix:/x", folder=tmp_path)
    with pytest.raises(ValueError, match=r"model_sha256 would refuse all but one; leave it out"):
        DaemonConfig(model="registry:production", model_sha256="0" * 64, cgroups=(tmp_path,), registry=where)


def test_the_file_read_again_finds_the_folder_that_its_name_stands_for(tmp_path: Path) -> None:
    where = RegistryConfig(address="unix:/x", folder=tmp_path)
    own = DaemonConfig(model="registry:production", cgroups=(tmp_path,), registry=where)
    asked: list[tuple[str, str, str | None]] = []

    def agent_for(config: DaemonConfig, model: str, _target: Target) -> Agent:
        asked.append((config.model, model, config.model_sha256))
        return FixedCap(30)

    load = Followed(own, "/models/a", agent_for).load
    load(own, own.model, own.asked)
    load(own, "rule", own.asked)  # a policy's
    load(own.model_copy(update={"model": "/models/b"}), "/models/b", own.asked)
    assert asked == [("/models/a", "/models/a", "a"), ("/models/a", "rule", "a"), ("/models/b", "/models/b", None)]
    with pytest.raises(ConfigError, match="is followed from the start on"):
        load(own.model_copy(update={"model": "registry:canary"}), "registry:canary", own.asked)


class Following:
    """A loop under the first of two models of a registry, and what takes further ones, as the decision process has it.

    ``policies`` are the file's, beside which its model may change.
    """

    def __init__(self, folder: Path, policies: tuple[PolicyConfig, ...] = ()) -> None:
        self.folder = folder
        for sha256 in (FIRST, SECOND):
            shutil.copytree(FOLDERS[sha256], folder / sha256)
        where = RegistryConfig(address="unix:/x", folder=folder)
        config = DaemonConfig(model="registry:production", cgroups=(folder,), registry=where, policies=policies)
        name = Followed(config, str(folder / FIRST), agent_for)
        self.shim, self.loop = started(name.load(config, config.model, config.asked))
        self.kept = _Kept(self.loop, name, Asked())
        self.kept.reloader = Reloader(None, config, self.kept, name.load, lambda _cookies: {})
        self.kept.begin(self.loop._policies.all[0].agent)
        self.load = name.load
        self.tick()

    def tick(self) -> None:
        self.shim.feed(7, **HEALTHY)
        self.loop.tick()

    def read_again(self, **changes: object) -> None:
        """As if the file had been changed, and was read again."""
        reloader = self.kept.reloader
        reloader.config = reloader.config.model_copy(update=changes)
        config = reloader.config
        reloader._command(config, self.load(config, config.model, config.asked))
        self.tick()

    def ends(self, sha256: str) -> list[str]:
        """Takes a model; returns what the log says of swaps."""
        with capture_logs() as logged:
            self.kept.take_model(str(self.folder / sha256), sha256)
            self.tick()
        return [entry["event"] for entry in logged if entry["event"].startswith("swap")]

    def swaps(self) -> list[str]:
        """Returns the folder of what each policy tries."""
        return [policy.swap.partition(": ")[2].partition(" ")[0][-64:] for policy in self.loop.status().policies]


def test_a_swap_whose_answer_came_too_late_does_not_begin_anew(tmp_path: Path) -> None:
    daemon = Following(tmp_path)
    assert daemon.ends(SECOND) == ["swap begins"]
    assert daemon.ends(SECOND) == [], "it is asked for at each sign of life, until the answer comes in time"
    daemon.loop._policies.all[0].roll_back("its flows were slower", 0)
    daemon.tick()
    assert daemon.ends(SECOND) == [], "it went again, with a reason"
    assert daemon.ends(FIRST) == [], "which decides again already"
    assert daemon.ends(SECOND) == ["swap begins"], "what was promoted again comes again"


def test_what_was_rolled_back_stays_so_when_the_file_is_read_again(tmp_path: Path) -> None:
    daemon = Following(tmp_path)
    daemon.ends(SECOND)
    daemon.loop._policies.all[0].roll_back("its flows were slower", 0)
    daemon.read_again(target=Target.parse("+40ms"))
    assert daemon.swaps() == [""]
    assert daemon.loop.status().policies[0].target == "+40ms"


def test_a_target_that_was_asked_for_outlives_a_promotion(tmp_path: Path) -> None:
    daemon = Following(tmp_path)
    daemon.kept.set_target(0, "66ms")
    daemon.tick()
    assert daemon.ends(SECOND) == ["swap begins"]
    assert daemon.loop.status().target == "66ms"


def test_policies_without_a_model_follow_too_and_others_do_not(tmp_path: Path) -> None:
    own = tuple(PolicyConfig(name=name, local_ports=(port,), model=model)
                for name, port, model in (("video", 443, None), ("bulk", 80, "rule")))  # fmt: skip
    daemon = Following(tmp_path, own)
    daemon.ends(SECOND)
    assert daemon.swaps() == [SECOND, SECOND, ""]
    daemon.read_again(target=Target.parse("+40ms"))
    assert daemon.swaps() == [SECOND, SECOND, ""]
    daemon.kept.reloader.close()


def test_a_file_that_names_another_model_is_not_overruled_by_a_promotion(tmp_path: Path) -> None:
    daemon = Following(tmp_path)
    daemon.read_again(model="none")
    with pytest.raises(
        ModelError, match=r'the file says model = "none", so what registry:production points to is left'
    ):
        daemon.ends(SECOND)
    daemon.read_again(model="registry:production")
    assert daemon.ends(SECOND)[-1:] == ["swap begins"]
    assert daemon.swaps() == [SECOND]


def test_a_model_that_was_changed_where_it_lies_is_refused(tmp_path: Path) -> None:
    """Consistently, as whoever may write there can: its digest is what the registry named."""
    daemon = Following(tmp_path)
    for sha256 in (FIRST, SECOND):
        edit_manifest(tmp_path / sha256, lambda manifest: manifest.update(name="another"))
    with pytest.raises(ModelError, match="is pinned"):
        daemon.ends(SECOND)
    with pytest.raises(ModelError, match="is pinned"):
        daemon.read_again(target=Target.parse("+40ms"))


def test_only_the_default_follows_a_name() -> None:
    with pytest.raises(ValueError, match=r"only \[daemon\] follows a name"):
        PolicyConfig(name="video", model="registry:production")


def test_a_name_of_a_registry_needs_its_address(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"daemon\.registry"):
        DaemonConfig(model="registry:production", cgroups=(tmp_path,))


def test_what_the_hold_out_knows_goes_into_every_report(host: Host, tmp_path: Path) -> None:
    known = Comparison(delay=Ratio(0.5, 0.4, 0.6, 40, 10), throughput=Ratio(0.97, 0.0, math.inf, 40, 10))
    policy = PolicyStatus("default", "hold-out", "m", "+30ms", "hold-out", "", "slower", "", "", known)
    status = Status(True, False, "", "+30ms", 1, 1, 1, 1.0, policies=(policy,))
    settings = config(host, tmp_path)
    stop = follow(settings, Path(resolved(settings).model).name, lambda _folder, _sha256: None, lambda: status)
    try:
        wait_for(lambda: host.models.reports)
    finally:
        stop()
    assert dict(host.models.reports[-1].figures) == {
        "delay": 0.5, "delay_low": 0.4, "delay_high": 0.6, "throughput": 0.97, "throughput_low": 0.0,
        "capped_flows": 40.0, "plain_flows": 10.0, "stood_down": 1.0,
    }  # fmt: skip
    assert hold_out_figures(replace(status, policies=())) == {}
    unknown = replace(policy, comparison=Comparison(), stood_down="")
    assert hold_out_figures(replace(status, policies=(unknown,))) == {}, "nothing is known, so nothing is said"

"""The cgroups of a daemon: patterns, those that come and go, and daemons that want the same ones."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from reinet.core.errors import ConfigError, DaemonError, ShimError
from reinet.daemon import cgroups, serve
from reinet.daemon.cgroups import CgroupClaim, Cgroups, standing_for
from reinet.daemon.config import DaemonConfig
from reinet.daemon.policies import PolicyConfig
from reinet.daemon.processes.child import Child
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.supervisor import Loader, Supervisor
from reinet.kshim.kernel import Adopted


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the mount of cgroup v2; locks are as there."""
    monkeypatch.setattr(cgroups, "cgroup2_mount", lambda: tmp_path)
    for name in ("a/b", "c", "docker-1.scope", "docker-2.scope"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_a_pattern_stands_for_what_is_there_and_a_name_for_itself(mount: Path) -> None:
    found = cgroups.standing_for([mount / "docker-*.scope", mount / "absent", mount / "docker-1.scope"])
    assert found == [mount / "docker-1.scope", mount / "docker-2.scope", mount / "absent"]
    with pytest.raises(ConfigError, match="a pattern names folders below"):
        cgroups.check([Path("/elsewhere/*")])
    cgroups.check([mount / "none-*"])


def test_a_policys_cgroup_outside_the_hierarchy_is_refused_and_one_that_may_come_is_not(
    mount: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "link").symlink_to(mount / "a")
    cgroups.check_policies([PolicyConfig(name="web", cgroups=(mount / "a", mount / "gone", mount / "docker-*.scope"))])
    cgroups.check_policies([PolicyConfig(name="web", cgroups=(elsewhere / "link",)), PolicyConfig(name="all")])
    for name in (elsewhere, elsewhere / "gone", elsewhere / "docker-*.scope"):
        with pytest.raises(ConfigError, match=r"\[\[policy\]\] 'web': cgroups: .* lies outside cgroup v2"):
            cgroups.check_policies([PolicyConfig(name="web", cgroups=(name,))])


def test_dear_looks_are_made_seldom(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand containers, looked at five times a second, took a sixth of a core."""
    clock = SimpleNamespace(now_s=100.0, cpu_s=0.0, look_s=0.034)

    def thread_time() -> float:
        clock.cpu_s += clock.look_s
        return clock.cpu_s

    monkeypatch.setattr(cgroups, "time", SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=thread_time))
    seen = Cgroups([mount / "docker-*.scope"])
    (mount / "docker-3.scope").mkdir()
    clock.now_s += 0.6
    assert not seen.changed()
    clock.now_s += 0.1
    clock.look_s = 0.005
    assert seen.changed()
    (mount / "docker-3.scope").rmdir()
    assert seen.changed(), "a cheap look is made at once"


def test_what_comes_goes_and_is_made_anew_is_noticed(mount: Path) -> None:
    seen = Cgroups([mount / "c", mount / "docker-*.scope"])
    assert not seen.changed()
    (mount / "docker-3.scope").mkdir()
    assert seen.changed()
    assert mount / "docker-3.scope" in seen.here()
    (mount / "docker-3.scope").rmdir()
    assert seen.changed()
    assert not seen.problem(), "a container may end"
    assert mount / "docker-3.scope" not in seen._seen, "nor is it remembered: there are many in a year"
    (mount / "c").rename(mount / "former")  # holds its inode, so that the new one has another
    assert seen.changed()
    assert f"{mount / 'c'} was removed" in seen.problem()
    (mount / "c").mkdir()
    assert seen.changed()
    assert not seen.problem()


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_two_claims_that_overlap_are_refused(mount: Path, first: str, second: str) -> None:
    with CgroupClaim([mount / first]), pytest.raises(DaemonError, match=r"another daemon \(pid"):
        CgroupClaim([mount / second])
    CgroupClaim([mount / second]).close()  # given back


def test_claims_beside_each_other_are_granted_and_change_with_what_is_named(mount: Path) -> None:
    with CgroupClaim([mount / "a/b"]) as first, CgroupClaim([mount / "c", mount / "docker-1.scope"]) as second:
        assert list(first.take([mount / "a/b", mount / "c"])) == [mount / "c"]
        assert not second.take([mount / "docker-1.scope"])
        assert not first.take([mount / "a/b", mount / "c"])


def test_one_claim_may_hold_a_folder_and_one_below_it(mount: Path) -> None:
    with CgroupClaim([mount / "a", mount / "a/b"]):
        pass


@contextmanager
def locked_by_another_user(*paths: Path) -> Iterator[int]:
    """Have another user's process lock these, and give its pid."""
    hold = "import fcntl, sys; [fcntl.flock(int(fd), fcntl.LOCK_EX) for fd in sys.argv[1:]]; print(flush=True); input()"
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    command = ["/usr/bin/python3", "-IS", "-c", hold, *map(str, fds)]  # one that any user may run
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=65534, pass_fds=fds) as other:
        for fd in fds:
            os.close(fd)
        assert other.stdout is not None
        other.stdout.readline()
        yield other.pid
        other.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_users_lock_counts_for_nothing(mount: Path) -> None:
    """Any user may open and lock a cgroup's folder, and none of them may keep the daemon from it."""
    with locked_by_another_user(mount / "a"), CgroupClaim([mount / "a"]):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_however_much_another_user_locks_the_hosts_locks_are_read_once_and_it_is_told_once(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read for each cgroup, each time that a container came, and told of as often."""
    named = [mount / "a/b", mount / "c", mount / "docker-1.scope"]
    looks: list[int] = []
    lines: list[dict[str, object]] = []
    read = cgroups._lockers
    monkeypatch.setattr(cgroups, "_lockers", lambda: looks.append(1) or read())
    monkeypatch.setattr(cgroups.log, "warning", lambda event, **more: lines.append(more))
    with locked_by_another_user(*named) as pid, CgroupClaim(named[:2]) as claim:
        assert len(looks) == 1
        assert not claim.take(named)
        assert not claim.take(named)
    assert len(looks) == 3
    assert [line["cgroups"] for line in lines] == [f"{named[0]}, {named[1]}", str(named[2])]
    assert lines[0]["pids"] == str(pid)


def test_a_lock_on_another_file_system_is_nobodys_claim(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a service of root's held on a file of the same number kept the daemon from its cgroup."""
    monkeypatch.setattr(cgroups, "LOCKS", mount / "locks")
    with CgroupClaim([mount / "a"]):
        (mount / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 1 ff:ff:{(mount / 'a').stat().st_ino} 0 EOF\n")
        with pytest.raises(DaemonError, match=r"another daemon \(pid unknown\)"):
            CgroupClaim([mount / "a"])


def test_a_cgroup_goes_by_its_own_name_however_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = [tmp_path / "real", tmp_path / "link", tmp_path / "real" / ".." / "real", tmp_path / "li*"]
    assert standing_for(names) == [tmp_path / "real"]


def test_a_cgroup_of_another_daemons_keeps_no_other_from_being_served(mount: Path) -> None:
    named = [mount / "a/b", mount / "c"]
    with CgroupClaim([mount / "c"]), CgroupClaim([]) as second:
        refusals = second.take(named)
        assert list(refusals) == [mount / "c"]
        assert "another daemon" in refusals[mount / "c"]
        with pytest.raises(DaemonError):
            CgroupClaim([mount / "a/b"])
    with CgroupClaim([]) as second:
        assert not second.take(named)


def test_a_folder_that_another_daemon_is_below_is_refused_and_those_below_stay_ones_own(mount: Path) -> None:
    (mount / "a" / "d").mkdir()
    with CgroupClaim([mount / "a/d"]), CgroupClaim([mount / "a/b"]) as own:
        assert list(own.take([mount / "a", mount / "a/b"])) == [mount / "a"]
        with pytest.raises(DaemonError):
            CgroupClaim([mount / "a"])
    with CgroupClaim([mount / "a"]):
        pass


def test_a_daemons_children_hold_none_of_its_claims(mount: Path) -> None:
    """Else it would be refused its own cgroups, and the next daemon its place, for as long as one of them lives."""
    release = threading.Event()
    claim, socket = CgroupClaim([mount / "a/b", mount / "c"]), SocketClaim(mount / "control.sock")
    child = Child("lasting", lambda link: (link.sendall(b"."), link.recv(1)) and release.wait(60))  # type: ignore[func-returns-value]
    try:
        assert child.link.recv(1) == b"."
        assert not claim.take([mount / "a/b"])
        assert not claim.take([mount / "a/b", mount / "c"])
        claim.close()
        socket.close()
        with CgroupClaim([mount / "a/b", mount / "c"]), SocketClaim(mount / "control.sock"):
            pass
    finally:
        child.kill()


def test_cgroups_beyond_the_descriptors_are_told_and_leave_some_for_all_else(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon ended, without any to look after its processes, when some containers more than usual were started."""
    limit = len(os.listdir("/proc/self/fd")) + cgroups.SPARE_DESCRIPTORS + 2 * cgroups.PER_CGROUP
    monkeypatch.setattr(cgroups.resource, "getrlimit", lambda _which: (limit, limit))
    with CgroupClaim([mount / "c"]) as claim:  # and what is above it
        refusals = claim.take([mount / "c", mount / "docker-1.scope", mount / "docker-2.scope"])
        assert list(refusals) == [mount / "docker-2.scope"]
        assert "have more open files allowed (ulimit -n" in refusals[mount / "docker-2.scope"]
        assert not claim.take([mount / "c"])
        assert not claim.take([mount / "c", mount / "docker-2.scope"])


def test_the_table_of_mounts_is_read_once_however_many_cgroups_are_claimed(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read twice for each: beside a thousand containers, which mount a lot, a claim took seconds."""
    looks: list[Path] = []
    monkeypatch.setattr(cgroups, "cgroup2_mount", lambda: looks.append(mount) or mount)
    with CgroupClaim([mount / "a/b", mount / "c", mount / "docker-1.scope"]):
        assert len(looks) == 1


class Followers:
    """What a supervisor is to ``_watch``; it notes what it was told to follow."""

    status = None

    def __init__(self) -> None:
        self.followed: list[list[str]] = []
        self.problems: list[str] = []
        self.loop = SimpleNamespace(ticks=lambda: 1)

    def ended(self) -> str:
        return ""

    def adopt(self) -> None: ...

    def look(self) -> None: ...

    def report(self, problem: str) -> None:
        self.problems.append(problem)

    def follow(self, cgroups: Sequence[Path]) -> None:
        self.followed.append([path.name for path in cgroups])


def test_a_cgroup_made_anew_is_attached_again_though_another_ones_is_refused(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "ASK_S", 0.0)
    own, others = mount / "docker-1.scope", mount / "docker-2.scope"
    followers = Followers()
    todo: list[Callable[[], object]] = [
        lambda: (mount / "docker-3.scope").mkdir(),
        lambda: None,  # the refused one is tried again
        lambda: (own.rename(mount / "former"), own.mkdir()),  # the former one holds its inode: the new one has another
        lambda: None,
    ]

    def wait(_timeout_s: float) -> bool:
        if todo:
            todo.pop(0)()
            return False
        return True

    with CgroupClaim([others]), CgroupClaim([own]) as taken:
        names = Cgroups([own, mount / "docker-*.scope"])
        wake = SimpleNamespace(wait=wait, reload_wanted=False)
        serve._watch(cast(Supervisor, followers), wake, names, taken, "")  # type: ignore[arg-type]
    one, three = own.name, "docker-3.scope"
    assert followers.followed == [[one, three], [one, three]]
    assert "another daemon" in followers.problems[-1]


def test_a_change_among_hundreds_of_cgroups_takes_a_short_line_that_names_what_came(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line named all of them: at five hundred it was longer than a journal's may be, and came with each container."""
    lines: list[dict[str, object]] = []
    monkeypatch.setattr(cgroups, "CHEAP_LOOK_S", 60.0)  # however busy this host is
    monkeypatch.setattr(serve.log, "info", lambda event, **more: lines.append({"event": event, **more}))
    for number in range(300):
        (mount / f"docker-{number:064}.scope").mkdir()
    names, followers = Cgroups([mount / "docker-*.scope"]), cast(Supervisor, Followers())
    (mount / "docker-new.scope").mkdir()
    (mount / "docker-2.scope").rename(mount / "former")  # holds its inode, so that the new one has another
    (mount / "docker-2.scope").mkdir()
    assert names.changed()
    with CgroupClaim([]) as taken:
        attached, _ = serve._follow(followers, names, None, taken)
        assert attached is not None
        serve._follow(followers, names, attached[1:], taken)  # as when another daemon has left the first one
    assert lines[0]["cgroups"] == 303
    assert lines[0]["came"] == f"{mount / 'docker-2.scope'}, {mount / 'docker-new.scope'}"
    assert lines[1]["came"] == str(attached[0])


class Refusing:
    """A loader whose kernel refuses cgroups of one name."""

    def __init__(self) -> None:
        self.looks = 0

    def follow(self, paths: Sequence[Path]) -> None:
        if refused := [path for path in paths if path.name == "c"]:
            raise ShimError(f"{refused[0]} cannot be attached")

    def adopt(self) -> Adopted:
        self.looks += 1
        return Adopted(waiting=0, in_time=False)


def test_open_flows_are_taken_over_once_beside_a_cgroup_that_cannot_be_attached(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Refusing()
    looked: list[bool] = []
    monkeypatch.setattr("reinet.daemon.processes.supervisor.ADOPT_EVERY_S", 0.0)
    config = DaemonConfig(model="rule", cgroups=(mount / "a",))
    with SocketClaim(mount / "control.sock") as claim:
        supervisor = Supervisor(config, None, claim, serve.agent_for, serve.open_shim, serve.load_kernel)
    supervisor._loader = cast(Loader, loader)
    with capture_logs() as log:
        while supervisor.adopt():  # those of the start
            pass
    assert loader.looks == 2
    assert [entry["event"].partition(":")[0] for entry in log] == ["no time to look into every network namespace"]
    for found in ([mount / "c", mount / "a"], [mount / "c", mount / "a"], [mount / "c", mount / "a/b"]):
        before = loader.looks
        with pytest.raises(ShimError, match="cannot be attached"):
            supervisor.follow(found)
        while supervisor.adopt():
            pass
        looked.append(loader.looks > before)
    assert looked == [True, False, True]

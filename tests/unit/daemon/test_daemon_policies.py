"""Policies: who is under which, by port, peer and cgroup; the file taken up again while flows go on."""

import os
import socket
import struct
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing, contextmanager
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
import structlog

from helpers.loops import HEALTHY
from helpers.places import ROOT
from reinet.agents.decide.active_policy import ActivePolicy
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.modes import Mode, PolicySpec
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.verdicts import WORDS, Why
from reinet.core.errors import ConfigError, ModelError
from reinet.core.target import Target
from reinet.daemon.config import DaemonConfig, load_config
from reinet.daemon.policies import PolicyConfig
from reinet.daemon.reload import Reloader
from reinet.daemon.sockets import KernelSockets, Socket, SocketPlacer, cgroup_ids
from reinet.kshim.fake import FakeShim

SO_COOKIE = 57


@contextmanager
def connection(family: int, address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as client, listener.accept()[0] as server:
            yield client, server


def cookie_of(one: socket.socket) -> int:
    return int(struct.unpack("=Q", one.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0])


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_tells_port_peer_and_cgroup_of_every_cookie(family: int, address: str) -> None:
    try:
        with connection(family, address) as (client, server), closing(KernelSockets()) as kernel:
            shown = kernel()
            assert kernel({cookie_of(client)})[cookie_of(server)] is None, "not wanted"
            mine, other = shown[cookie_of(client)], shown[cookie_of(server)]
            assert mine.local_port == client.getsockname()[1]
            assert other.local_port == server.getsockname()[1]
            assert mine.peer == ip_address(address)
            assert mine.cgroup_id == other.cgroup_id
    except OSError as error:
        if family == socket.AF_INET6 and error.errno in (97, 99):
            pytest.skip("this host has no IPv6 loopback")
        raise


def flow(cookie: int, port: int = 80, peer: str = "192.0.2.1", cgroup_id: int = 0) -> Socket:
    return Socket(cookie, port, ip_address(peer), cgroup_id)


def dump(flows: Sequence[Socket]) -> Callable[[Container[int]], dict[int, Socket | None]]:
    return lambda wanted: {one.cookie: one if one.cookie in wanted else None for one in flows}


def placed(policies: Sequence[dict[str, object]], *flows: Socket) -> list[int]:
    placer = SocketPlacer([PolicyConfig.model_validate(policy) for policy in policies], dump(flows))
    cookies = np.array([one.cookie for one in flows], np.uint64)
    assert placer.place(cookies).tolist() == [-1] * len(flows)
    placer.look(np.zeros(0, np.uint64))
    return placer.place(cookies).tolist()


def test_the_first_policy_counts_whose_every_selector_fits(tmp_path: Path) -> None:
    below = tmp_path / "web" / "nginx"
    below.mkdir(parents=True)
    policies = [
        {"name": "both", "local_ports": [443, "8000-8099"], "peers": ["10.0.0.0/8", "2001:db8::/32"]},
        {"name": "port", "local_ports": ["443"]},
        {"name": "group", "cgroups": [str(tmp_path / "web"), str(tmp_path / "gone")]},
    ]
    assert placed(
        policies,
        flow(1, 443, "10.1.2.3"),
        flow(2, 8050, "2001:db8::1"),
        flow(3, 443),
        flow(4, 8050),
        flow(5, cgroup_id=os.stat(below).st_ino),
        flow(6, cgroup_id=os.stat(tmp_path).st_ino),
    ) == [1, 1, 2, 0, 3, 0]
    assert placed([{"name": "all"}], flow(1)) == [1]


def test_cgroups_that_are_gone_hold_nobody(tmp_path: Path) -> None:
    assert cgroup_ids(tmp_path / "gone") == set()


def test_a_flow_that_the_dump_does_not_show_is_under_the_default_and_one_that_is_known_stays() -> None:
    flows = [flow(1, 443)]
    placer = SocketPlacer([PolicyConfig(name="port", local_ports=(443,))], dump(flows))
    cookies = np.array([1, 2], np.uint64)
    placer.look(cookies)
    assert placer.place(cookies).tolist() == [1, 0]
    flows.append(flow(3, 443))
    placer.look(np.array([3], np.uint64))
    assert placer.place(np.array([3, 1], np.uint64)).tolist() == [1, 1]
    assert placer.place(np.array([2], np.uint64)).tolist() == [-1], "what is gone is forgotten"


def test_the_thread_asks_for_flows_that_nobody_knows() -> None:
    placer = SocketPlacer([PolicyConfig(name="port", local_ports=(443,))], dump([flow(1, 443)])).start()
    cookies = np.array([1], np.uint64)
    while placer.place(cookies).tolist() == [-1]:
        placer._thread.join(0.01)
    assert placer.place(cookies).tolist() == [1]
    placer.close()
    placer._thread.join(60)
    assert not placer._thread.is_alive()


def test_the_page_shows_a_file_that_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "modes.md").read_text()
    (tmp_path / "own.toml").write_text(page.split("```text\n", 1)[1].split("```", 1)[0])
    config = load_config(tmp_path / "own.toml")
    assert config.mode is Mode.HOLD_OUT
    assert [policy.name for policy in config.policies] == ["video", "inside"]
    assert config.policies[0].local_ports == ((443, 443), (8000, 8099))


# --- in the loop, and reloaded ---


class Served:
    """A loop over flows 7 (port 443) and 8 (port 80), kept as a file says."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.shim = path, FakeShim()
        self.sockets = [flow(7, 443), flow(8, 80)]
        self.write(text)
        self.config = config = load_config(path)
        agent = self.load(config, config.model, config.asked)
        self.loop = ControlLoop(self.shim, agent, config.asked, clock_ns=lambda: self.shim.now_ns, mode=config.mode)
        for one in self.sockets:
            self.shim.open_flow(one.cookie)
        self.reloader = Reloader(path, config, self.loop, self.load, dump(self.sockets))
        self.reloader.start(agent)

    @staticmethod
    def load(config: DaemonConfig, model: str, target: Target) -> Agent:
        return make_agent(model, "kernel")

    def write(self, text: str) -> None:
        self.path.write_text('[daemon]\ncgroups = ["/x"]\n' + text)

    def caps(self, ticks: int = 3) -> list[int]:
        """The caps after so many ticks; where there are policies the kernel has told of every flow by then."""
        if self.reloader._placer is not None:
            self.reloader._placer.look(np.array([one.cookie for one in self.sockets], np.uint64))
        for _ in range(ticks):
            self.shim.advance_ms(20)
            for one in self.sockets:
                self.shim.feed(one.cookie, **HEALTHY)
            self.loop.tick()
        return [self.shim.cap_pkts(one.cookie) for one in self.sockets]


PORT = '[[policy]]\nname = "tls"\nlocal_ports = [443]\n'


Serve = Callable[[str], Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Served] = []

    def start(text: str) -> Served:
        started.append(Served(tmp_path / "daemon.toml", text))
        return started[-1]

    yield start
    for served in started:
        served.reloader.close()


def test_each_flow_is_under_its_policys_model_target_and_mode(serve: Serve) -> None:
    served = serve(f'model = "fixed:10"\n{PORT}model = "fixed:20"\ntarget = "90ms"\n')
    assert served.caps() == [20, 10]
    assert [served.shim.target_us(cookie) for cookie in (7, 8)] == [90_000, 50_000]
    policies = served.loop.status().policies
    assert [(c.name, c.model, c.target, c.mode) for c in policies] == [
        ("default", "fixed:10", "+30ms", "enforce"),
        ("tls", "fixed:20", "90ms", "enforce"),
    ]


def test_a_flow_has_no_cap_before_its_policy_is_known(serve: Serve) -> None:
    served = serve(f'model = "fixed:10"\n{PORT}')
    placer = served.reloader._placer
    assert placer is not None
    served.caps()
    served.reloader.close()
    placer._thread.join(60)
    served.reloader._placer = None  # nobody asks the kernel any more
    served.sockets.append(flow(9, 443))
    served.shim.open_flow(9)
    assert served.caps() == [10, 10, 0]
    assert served.loop.snapshot().reasons[-1] == WORDS[Why.UNPLACED]


def test_a_changed_file_is_taken_up_and_a_flow_that_moves_begins_anew(serve: Serve) -> None:
    served = serve('model = "fixed:10"\n')
    served.reloader.look()
    assert served.caps() == [10, 10]
    served.write(f'model = "fixed:10"\n{PORT}model = "fixed:20"\n')
    served.reloader.look()
    assert served.caps() == [20, 10]
    served.write(f'model = "fixed:10"\n{PORT}model = "fixed:20"\nmode = "shadow"\n')
    served.reloader.look()
    assert served.caps() == [0, 10]
    assert "a cap of 20 packets was decided and not applied" in served.loop.snapshot().reasons[0]
    assert served.loop.status().state == "enforcing, shadow"
    served.write('model = "fixed:10"\ntarget = "70ms"\n')
    served.reloader.look()
    assert served.caps() == [10, 10]
    assert served.shim.target_us(7) == 70_000


def test_a_policys_cgroup_that_no_socket_can_be_in_leaves_the_old_file_in_force(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reinet.daemon.cgroups.cgroup2_mount", lambda: Path("/sys/fs/cgroup"))
    served = serve('model = "fixed:10"\n')
    served.write(f'model = "fixed:20"\n[[policy]]\nname = "web"\ncgroups = ["{tmp_path}"]\n')
    with structlog.testing.capture_logs():
        assert not served.reloader.reload()
    assert f"{tmp_path} lies outside cgroup v2" in served.reloader.problem
    assert served.caps() == [10, 10]


def test_another_model_in_the_file_is_swapped_in_step_by_step(serve: Serve) -> None:
    served = serve('model = "fixed:10"\n')
    served.caps()
    served.write('model = "fixed:20"\n')
    assert served.reloader.reload()
    served.caps(1)
    assert served.loop.status().policies[0].swap == "share: fixed:20"
    assert served.reloader.reload()
    with structlog.testing.capture_logs() as seen:
        served.caps(1)
    assert "swap begins" not in [entry["event"] for entry in seen], "the swap under way is the one that is wanted"
    with structlog.testing.capture_logs():
        for _ in range(1100):
            caps = served.caps(1)
    assert caps == [20, 20]


def test_a_policys_cgroups_may_be_patterns_and_a_mapped_prefix_is_its_ipv4_one(tmp_path: Path) -> None:
    for name in ("sub-1", "sub-2", "other"):
        (tmp_path / name).mkdir()
    inode = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    policies = [
        PolicyConfig(name="pattern", cgroups=(tmp_path / "sub-*",)),
        PolicyConfig(name="mapped", peers=("::ffff:10.0.0.0/104",)),
    ]
    sockets = [
        Socket(1, 80, ip_address("192.0.2.1"), inode["sub-2"]),
        Socket(2, 80, ip_address("10.1.2.3"), inode["other"]),
        Socket(3, 80, ip_address("192.0.2.1"), inode["other"]),
    ]
    placer = SocketPlacer(policies, dump(sockets))
    cookies = np.array([1, 2, 3], np.uint64)
    placer.look(cookies)
    assert placer.place(cookies).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model = \n", "not valid TOML"),
        ('model = "fixed:3"\n', "N is a whole number of packets"),
        (f'model = "fixed:10"\n{PORT}model = "checkpoints/none"\n', "agent 'checkpoints/none'"),
        ('model = "fixed:10"\nmode = "off"\n', "daemon.mode = 'off'"),
        (f'model = "fixed:10"\nlease_ms = {"9" * 5000}\n', "not valid TOML"),
        (f'model = "fixed:10"\nlog_dir = {"[" * 5000}\n', "not valid TOML"),
        ('model = "fixed:10"\n[[policy]]\nname = "web"\nlocal_ports = [inf]\n', "inf is no port and no range"),
        ('model = "fixed:10"\n[[policy]]\nname = "web"\nlocal_ports = [443.7]\n', "443.7 is no port and no range"),
        ('model = "fixed:10"\n[[policy]]\nname = "web"\npeers = [5]\n', "5 is no prefix"),
    ],
    ids=[
        "no value",
        "no agent",
        "no model",
        "no mode",
        "a long number",
        "deep nesting",
        "an infinite port",
        "a part of a port",
        "a number for a prefix",
    ],
)
def test_a_bad_file_leaves_the_old_one_in_force_and_says_why(serve: Serve, text: str, why: str) -> None:
    served = serve(f'model = "fixed:10"\n{PORT}model = "fixed:20"\n')
    assert served.caps() == [20, 10]
    served.write(text)
    with structlog.testing.capture_logs() as seen:
        for _ in range(3):
            served.reloader.look()
    assert served.caps() == [20, 10]
    assert why in served.reloader.problem
    assert [entry["event"] for entry in seen] == ["not reloaded, the old configuration stays in force"], "logged once"
    served.write('model = "fixed:10"\n')
    served.reloader.look()
    assert served.reloader.problem == ""
    assert served.caps() == [10, 10]


def test_keys_that_need_a_restart_are_named(serve: Serve) -> None:
    served = serve('model = "fixed:10"\n')
    served.write(f'model = "fixed:10"\nmodel_sha256 = "{"0" * 64}"\nlease_ms = 300\n')  # the pin is in force at once
    with structlog.testing.capture_logs() as seen:
        assert served.reloader.reload()
    assert [entry["keys"] for entry in seen if "keys" in entry] == [["lease_ms"]]


def test_what_policies_that_are_gone_did_stays_counted(serve: Serve) -> None:
    served = serve(f'model = "fixed:10"\n{PORT}model = "fixed:20"\n')
    served.caps()
    for one in served.sockets:
        served.shim.feed(one.cookie, **HEALTHY)
    served.shim.advance_ms(600)  # more than a lease
    served.loop.tick()
    before = served.loop.status()
    assert (before.decisions, before.stale) == (6, 2)
    served.write('model = "fixed:10"\n')
    served.reloader.look()
    served.loop.tick()
    assert len(served.loop.status().policies) == 1
    assert (served.loop.status().decisions, served.loop.status().stale) == (6, 2)
    served.write(f'model = "fixed:10"\n{PORT}model = "fixed:20"\n')
    served.reloader.look()
    served.caps()
    after = served.loop.status()
    assert after.decisions == 6 + sum(policy.decisions for policy in served.loop._policies.all[1:]) + 3
    assert after.stale == 2


def test_what_was_swapped_in_meanwhile_stays_when_the_file_names_the_same_model_again(serve: Serve) -> None:
    served = serve('model = "fixed:10"\n')
    served.caps()
    served.loop.swap(make_agent("fixed:30"), share=1.0)
    assert served.caps() == [30, 30]
    served.write('model = "fixed:10"\ntarget = "70ms"\n')
    served.reloader.look()
    assert served.caps() == [30, 30]
    assert served.shim.target_us(7) == 70_000


def test_a_swap_goes_to_its_policy_as_what_was_asked_for_before_has_made_it(serve: Serve) -> None:
    """The loop's thread may not have come yet to files that took the policy out and put it in again."""
    served = serve(f'model = "fixed:10"\n{PORT}')
    served.caps()
    for policies in ("", PORT):
        served.write(f'model = "fixed:10"\n{policies}')
        assert served.reloader.reload()
    served.loop.swap(make_agent("fixed:30"), "tls", share=1.0)
    assert served.caps() == [30, 10]
    served.write('model = "fixed:10"\n')
    assert served.reloader.reload()
    served.loop.swap(make_agent("fixed:40"), "tls", share=1.0)
    with structlog.testing.capture_logs() as seen:
        assert served.caps() == [10, 10]
    assert [(one["policy"], one["model"]) for one in seen if one["log_level"] == "warning"] == [("tls", "fixed:40")]


def test_a_file_is_taken_up_while_a_swap_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve('model = "fixed:10"\n')
    served.loop.swap(make_agent("fixed:20"))
    served.caps()
    policy = served.loop._policies.all[0]
    looks = iter([policy._trial])  # the loop's thread ends it before the next
    monkeypatch.setattr(ActivePolicy, "_trial", property(lambda _: next(looks, None)), raising=False)
    assert policy.must_swap(PolicySpec(make_agent("fixed:30"), served.config.asked))


def test_what_flows_are_measured_by_stays_whoever_decides_meanwhile(serve: Serve) -> None:
    """The hand rule goes with any period, so it said nothing of the one that a model meets after it."""
    default, per_rtt = (ROOT / "checkpoints" / name for name in ("default", "per-rtt"))
    served = serve(f'model = "{default}"\n{PORT}model = "rule"\n')
    served.caps()
    served.loop.swap(make_agent("rule:1.2"), share=1.0)
    served.caps()
    for policy in ("", "tls"):
        with pytest.raises(
            ModelError, match=r"of its own \(each round trip, 10 ms at least\), .* others \(every 5 ms\)"
        ):
            served.loop.swap(make_agent(str(per_rtt), "kernel"), policy)
        assert served.loop.swap(make_agent(str(default), "kernel"), policy).refused == 0
    served.caps()
    served.write(f'model = "{default}"\n{PORT}')
    served.reloader.look()
    assert served.reloader.problem == ""


def test_agents_of_other_periods_replace_none(serve: Serve) -> None:
    default, per_rtt, small = (str(ROOT / "checkpoints" / name) for name in ("default", "per-rtt", "small"))
    for model, other in ((default, per_rtt), ("rule", small)):
        served = serve(f'model = "{model}"\n')
        served.caps()
        with pytest.raises(ModelError, match="it decides by periods of its own"):
            served.loop.replace_agents({"default": make_agent(other, "kernel")})
    served = serve(f'model = "{default}"\n')
    served.caps()
    with pytest.raises(ConfigError, match="there is no policy 'video'"):
        served.loop.replace_agents({"video": make_agent(small, "kernel")})
    served.loop.replace_agents({"default": make_agent(small, "kernel")})
    served.caps(1)
    assert served.loop.status().policies[0].swap.startswith(f"share: {small} (schema ")

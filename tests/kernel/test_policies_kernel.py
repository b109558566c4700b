"""Policies on live flows: the cookie of a record is that of the kernel's list of sockets, in one network namespace."""

from contextlib import closing

import pytest

from helpers.flows import read_for, settled
from reinet.daemon.policies import PolicyConfig
from reinet.daemon.sockets import DEFAULT, KernelSockets, SocketPlacer
from reinet.kshim.kernel import KernelShim

pytestmark = pytest.mark.kernel

HERE = 2
"""The place of the second policy."""


@pytest.mark.parametrize(("own_network", "place"), [(False, HERE), (True, DEFAULT)])
def test_a_live_flow_is_under_the_policy_that_its_cgroup_and_peer_fit(cgroup, transfer, own_network, place):
    policies = [
        {"name": "elsewhere", "local_ports": [1]},
        {"name": "here", "cgroups": [str(cgroup)], "peers": ["127.0.0.0/8", "::1/128"]},
    ]
    with KernelShim([cgroup]) as shim, closing(KernelSockets()) as sockets:
        placer = SocketPlacer([PolicyConfig.model_validate(policy) for policy in policies], sockets)
        network = {"own_network": True, "rate_mbit": 20} if own_network else {"own_network": False}
        flow = transfer(cc="cubic", cgroup=cgroup, seconds=60, until_told=True, **network)
        heard = []
        assert settled(lambda: heard.extend(read_for(shim, 0.2)["cookie"].tolist()) or flow.cookie in heard)
        cookies = read_for(shim, 0.5)["cookie"][:1]
        placer.look(cookies)
        assert cookies.tolist() == [flow.cookie]
        assert placer.place(cookies).tolist() == [place]
        assert flow.result()["intact"]

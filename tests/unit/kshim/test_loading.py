"""What is said where the kernel takes no BPF programs though everything that can be looked at is there."""

import errno
import os

import pytest

from reinet.core.errors import ShimError
from reinet.envs.sim import _driven
from reinet.kshim import kernel


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EMFILE, "have more open files allowed (ulimit -n 1024, or LimitNOFILE= in its unit)"),
        (errno.ENOMEM, "set `max_flows` or `records_mb` lower"),
        (errno.EPERM, "run it as root"),
        (errno.EINVAL, ""),
    ],
)
def test_a_kernel_that_takes_no_programs_is_told_with_the_cure(
    number: int, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kshim = pytest.importorskip("reinet.kshim._kshim")

    def loader(_options: object) -> None:
        raise OSError(number, f"load the BPF programs: {os.strerror(number)}")

    monkeypatch.setattr(_kshim, "Loader", loader)
    monkeypatch.setattr(kernel, "wrapper_names", lambda suffix: {"cubic": f"reinet_cubic{suffix}"})
    monkeypatch.setattr(kernel, "registered_congestion_controls", set)
    with pytest.raises(ShimError) as raised:
        kernel._load(_kshim.Options(), left=[])
    assert str(raised.value).startswith(f"the kernel shim cannot be loaded{'; ' if cure else ''}{cure}")
    assert os.strerror(number) in str(raised.value)


@pytest.mark.parametrize("records_bytes", [0, 2048, 5000, 3 << 20])
def test_a_ring_of_records_that_the_kernel_would_round_up_is_refused(records_bytes: int) -> None:
    """Records were lost there: who reads the ring goes by the size that was asked for."""
    with pytest.raises(ShimError, match="has to be a power of two"):
        kernel.KernelShim([], records_bytes=records_bytes)


@pytest.mark.parametrize("held", [False, True])
def test_namespaces_for_which_there_was_no_time_are_told(held: bool) -> None:
    """Flows there stayed alone without a word on hosts with more of them than two seconds are enough for."""
    assert _driven.visit_namespaces(0, held) == (0, False)
    _, in_time = _driven.visit_namespaces(60_000, held)
    assert in_time

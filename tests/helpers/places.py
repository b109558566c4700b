"""Where things lie, from wherever in ``tests/`` one asks."""

from pathlib import Path

HELPERS = Path(__file__).parent
TESTS = HELPERS.parent
ROOT = TESTS.parent


def our_mounts(table: Path = Path("/proc/self/mounts")) -> list[str]:
    """The host's mounts at the places where a link has some of its own (``envs/mahimahi/helpers/netns.c``), and those
    that bear our name; what others mount meanwhile is no business of a test's."""
    mounts = [line.split() for line in table.read_text().splitlines()]
    ours = ("reinet", "iptables", "xtables", "nft")
    return [" ".join(one) for one in mounts if one[1] in ("/proc", "/run") or any(name in one[1] for name in ours)]

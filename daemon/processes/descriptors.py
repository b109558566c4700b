"""How many files and connections a process may have open at once."""

import resource

MOST_DESCRIPTORS = 65_536
"""As many as docker/systemd/reinet.service allows."""


def allow_descriptors() -> None:
    """Raises the soft limit of open files: the usual 1024 are fewer than a fleet's connections, and than a
    host's cgroups take, at two each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

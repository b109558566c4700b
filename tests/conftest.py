"""Turns missing prerequisites into a skip with the cure on a user's machine, and into a failure in CI.

Property tests have no deadlines.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("reinet", deadline=None)  # how busy the host is decides nothing
settings.load_profile("reinet")

# A shell starts background jobs with Ctrl-C ignored, and so would be every program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

UNIT = Path(__file__).parent / "unit"
BROWSER = ("chromium", "chromedriver")
IN_CI = os.environ.get("CI", "").lower() == "true"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may enter, with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _missing(marker: str) -> str | None:
    """What a marked test lacks on this machine, with the cure, or None."""
    if marker == "browser":
        absent = [name for name in BROWSER if shutil.which(name) is None]
        return f"needs {' and '.join(absent)}: run docker/packages.sh --browser as root" if absent else None
    if marker == "java":
        return None if shutil.which("javac") else "needs javac: run docker/packages.sh --bench as root"
    if os.geteuid() != 0:
        return "needs root: run `sudo -E make test`"
    if marker == "kernel":
        from reinet.kshim.probe import features

        absent = [f"{name}: {feature.why}; {feature.cure}" for name, feature in features().items() if not feature.ok]
        return "; ".join(absent) or None
    if shutil.which("mm-link") is None:
        return "needs Mahimahi: run docker/packages.sh as root"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what cannot run here; in CI the tests stay in and fail with the reason.

    Raises UsageError for a unit test that needs privileges: make would leave it out.
    """
    reasons = {marker: _missing(marker) for marker in ("kernel", "mahimahi", "browser", "java")}
    for item in items:
        if item.path.is_relative_to(UNIT) and any(item.iter_markers("kernel")) | any(item.iter_markers("mahimahi")):
            raise pytest.UsageError(f"{item.nodeid} needs privileges: put it into tests/kernel or tests/end-to-end")
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                if IN_CI:
                    item.user_properties.append(("missing", reason))
                else:
                    item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In CI a missing prerequisite is a failure: a test that never runs proves nothing."""
    for name, reason in item.user_properties:
        if name == "missing":
            pytest.fail(f"prerequisite missing in CI: {reason}", pytrace=False)

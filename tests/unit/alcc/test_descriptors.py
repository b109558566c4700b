"""What the gate holds on to ends with the descriptor that it is of, whoever closes it."""

from pathlib import Path

import pytest

from helpers.gated import CAP_PKTS, seen_in, settings
from helpers.gated.server import MSS_BYTES
from reinet.alcc.launch import Law, Settings
from reinet.core.target import Target

FILE = "descriptors.py"
GATED = settings()


@pytest.mark.parametrize("case", ["closed_by_number", "closed_past_the_library", "closed_and_a_file_since"])
def test_a_connection_that_was_closed_past_the_gate_is_not_held_on_to(case: str) -> None:
    """A process has room for a million, and the daemon for 4096 of it."""
    seen, _ = seen_in(case, GATED, FILE)
    assert seen["flows"] <= 2
    assert seen.get("bytes", 50) == 50


def test_registrations_end_with_their_epoll() -> None:
    assert seen_in("closed_epolls", GATED, FILE)[0] == {"registrations": 1}


def test_a_registration_that_tells_once_of_the_connection_itself_lifts_no_cap() -> None:
    """PyTorch's gloo waits so for its connections; later registrations are others."""
    seen, words = seen_in("watched_once_as_it_connects", GATED, FILE)
    assert 0 < seen["held"] <= CAP_PKTS * MSS_BYTES
    assert not words


def test_a_connection_that_got_a_number_unseen_hears_of_every_opening() -> None:
    assert seen_in("watched_with_a_number_used_before", GATED, FILE)[0] == {"edges": 5}
    assert seen_in("watched_with_a_number_used_before", None, FILE)[0] == {"edges": 5}


def test_selects_sets_may_be_as_short_as_the_kernel_has_them() -> None:
    assert seen_in("small_sets", GATED, FILE)[0] == {"ready": 0, "set": 0}


def test_a_child_keeps_what_has_the_numbers_of_the_links_descriptors(tmp_path: Path) -> None:
    asked = Settings(Law("daemon", daemon=tmp_path / "socket"), Target.parse("+30ms"))
    assert seen_in("forked_with_the_links_numbers", asked, FILE)[0] == {"lost": 0}


@pytest.mark.parametrize("case", ["kept_by_exec", "handed_to_a_gated_process"])
def test_a_connection_that_goes_to_another_program_is_capped_there(case: str) -> None:
    """By exec, which closes nothing that it is not told to, or over a Unix socket."""
    plain, seen = (seen_in(case, asked, "handed.py")[0] for asked in (None, GATED))
    assert plain["same"] is seen["same"] is True
    assert 0 < seen["held"] <= CAP_PKTS * MSS_BYTES
    assert plain["held"] > 10 * CAP_PKTS * MSS_BYTES


@pytest.mark.parametrize("case", ["kept_by_exec_without_the_gate", "handed_to_a_process_without_the_gate"])
def test_a_connection_that_leaves_the_gate_has_no_cap_and_every_byte(case: str) -> None:
    seen, words = seen_in(case, GATED, "handed.py")
    assert seen["same"]
    assert seen["held"] > 10 * CAP_PKTS * MSS_BYTES
    assert words.count("did not pass here") == case.startswith("handed"), "its first owner still sends, and is let go"

"""Waits of one thread beside what handlers, forks and other threads do: under the gate they end as without it."""

from pathlib import Path

import pytest

from helpers.gated import MOST_HELD_BYTES, built, held_bytes_of, seen_alike, seen_of, settings


def test_a_waiting_write_takes_nothing_from_the_connection_that_gets_its_number(program: Path) -> None:
    """Its registration was forgotten, and it never heard that the gate had opened."""
    assert seen_alike(program, "number_goes_to_one_that_waits") == (0, ["forgotten 0"], "")


def test_a_copy_of_an_epoll_hears_of_every_opening(program: Path) -> None:
    """Made before anything was registered it was another epoll, and the closed one's registrations were forgotten."""
    assert seen_alike(program, "waits_at_a_copied_epoll") == (0, ["forgotten 0"], "")


def test_who_closes_descriptors_of_its_own_takes_no_registration_of_the_others_along(program: Path) -> None:
    gated, plain = (seen_of(program, "waits_beside_descriptors_of_anothers_own", asked) for asked in (settings(), None))
    assert gated[:2] == plain[:2] == (0, ["forgotten 0"])


@pytest.mark.parametrize(
    "case",
    [
        "jumps_out_of_poll",
        "jumps_out_of_read_by_select",
        "jumps_out_of_poll_at_a_closed_gate",
        "jumps_out_of_a_write_into_a_pipe",
        "jumps_out_of_a_write_at_a_closed_gate",
        "writes_in_a_handler",
    ],
)
def test_a_handler_in_a_wait_for_something_else_is_gated_and_so_is_the_thread_that_it_jumps_out_of(
    program: Path, case: str
) -> None:
    gated, plain = (seen_of(program, case, asked) for asked in (settings(), None))
    assert (gated[0], gated[2]) == (plain[0], plain[2]) == (0, "")
    assert held_bytes_of(gated[1]) < MOST_HELD_BYTES < held_bytes_of(plain[1])


def test_a_handler_does_not_wait_for_the_write_that_it_interrupted(program: Path) -> None:
    seen = seen_alike(program, "writes_in_a_handler_of_a_waiting_write")
    assert seen == (0, ["in the handler 536, all came 1"], "")


def test_a_handler_ends_a_wait_at_a_closed_gate_also_while_the_gate_looks(program: Path) -> None:
    """The gate waits in slices, and a handler that ran between two of them had ended nothing."""
    seen = [f"{call} -1 Interrupted system call" for call in ("poll", "select")]
    assert seen_of(program, "struck_between_slices", settings()) == (0, seen, "")


@pytest.mark.parametrize(
    ("case", "law", "lines"),
    [
        ("splices_what_is_there", "fixed:8", ["refused 0, of nothing -1 Resource temporarily unavailable"]),
        ("splices_nothing_at_a_closed_gate", "fixed:8", ["of nothing -1 Resource temporarily unavailable"]),
        ("pwritev2_that_may_not_wait", "fixed:260", ["at last -1 Resource temporarily unavailable"]),
    ],
)
def test_a_flag_that_says_not_to_wait_means_what_it_means_to_the_kernel(
    program: Path, case: str, law: str, lines: list[str]
) -> None:
    assert seen_alike(program, case, settings(law)) == (0, lines, "")


def test_a_process_made_past_the_handlers_of_fork_is_gated(program: Path) -> None:
    gated, plain = (seen_of(program, "made_past_the_handlers", asked) for asked in (settings(), None))
    assert gated[1][2:] == plain[1][2:] == ["of nowhere -1 Bad address"]
    for child in (0, 1):
        assert held_bytes_of(gated[1][child : child + 1]) < MOST_HELD_BYTES < held_bytes_of(plain[1][child : child + 1])


def test_a_fork_beside_a_first_write_ends_with_an_allocator_that_has_handlers(program: Path, tmp_path: Path) -> None:
    """The gate's thread is made with memory that only the fork gives free again; jemalloc is such a one."""
    allocator = built(["allocator.cpp"], tmp_path / "allocator.so", "-shared", "-fPIC", "-fno-builtin", "-DFORKS")
    for asked in (settings(), None):
        seen = seen_of(program, "first_write_beside_a_fork", asked, preload=f"{allocator}:{{gate}}")
        assert seen == (0, ["forked"], "")


def test_gates_open_and_close_while_a_users_groups_are_looked_up(program: Path, tmp_path: Path) -> None:
    """The host's name service takes two seconds for it."""
    names = built(["handlers.cpp"], tmp_path / "names.so", "-shared", "-fPIC", "-DNAMES")
    assert seen_of(program, "slow_groups", settings(), preload=f"{{gate}}:{names}") == (0, ["went on"], "")


def test_who_waits_for_a_signal_to_write_again_is_let_go(program: Path) -> None:
    """The kernel sends it when its own buffer has room again, and under a cap that never fills: it never came."""
    said = "reinet: a connection is not gated: its readiness is told by a signal (O_ASYNC)\n"
    assert seen_of(program, "waits_for_signals", settings()) == (0, ["told"], said)
    assert seen_of(program, "waits_for_signals", None) == (0, ["told"], "")


UNSEEN = (
    "reinet: a connection is not gated: an epoll tells when it may be written, unseen "
    "(past the C library, or from before an exec)\n"
)


@pytest.mark.parametrize("law", ["fixed:8", "copa"])
def test_who_waits_at_an_epoll_that_the_gate_does_not_see_is_let_go(program: Path, law: str) -> None:
    """It was told at once that a closed gate may be written, and took a core; what is said is said once for both."""
    assert seen_of(program, "waits_at_an_unseen_epoll", settings(law)) == (0, ["slept", "slept"], UNSEEN)
    assert seen_of(program, "waits_at_an_unseen_epoll", None) == (0, ["slept", "slept"], "")


def test_however_many_wait_at_such_an_epoll_all_are_let_go(program: Path) -> None:
    """Of many each is refused so seldom that none was, and the program took a core."""
    assert seen_of(program, "many_at_an_unseen_epoll", settings()) == (0, ["slept"], UNSEEN)
    assert seen_of(program, "many_at_an_unseen_epoll", None) == (0, ["slept"], "")


@pytest.mark.parametrize("law", ["fixed:8", "fixed:200"])
def test_who_waits_for_an_edge_of_an_epoll_that_the_gate_does_not_see_gets_one_and_stays_gated(
    program: Path, law: str
) -> None:
    """It waited for ever; under the wide cap the kernel, too, has more than it calls writable as the gate opens."""
    assert seen_alike(program, "waits_for_edges_unseen", settings(law)) == (0, ["forgotten 0"], "")


def test_such_an_epoll_is_looked_for_again_where_there_were_no_descriptors(program: Path) -> None:
    case = "waits_at_an_unseen_epoll_without_descriptors"
    status, lines, words = seen_of(program, case, settings())
    assert (status, lines[1:], words) == (0, ["slept"], UNSEEN)
    assert int(lines[0].removeprefix("refused ")) >= 20_000, "it was refused for as long as there were none"


def test_who_tries_again_without_end_of_its_own_stays_gated(program: Path) -> None:
    """No epoll tells it that it may write: one has another socket, and one is asked whether it may read."""
    gated, plain = (seen_of(program, "spins_without_an_epoll", asked) for asked in (settings(), None))
    assert (gated[0], gated[2]) == (plain[0], plain[2]) == (0, "")
    assert held_bytes_of(gated[1]) < MOST_HELD_BYTES < held_bytes_of(plain[1])

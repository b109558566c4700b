"""Threads that end, descriptors and processes that change: under the gate a program sees what it sees without it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from helpers.gated import MOST_HELD_BYTES, TIMEOUT_S, built, environment, held_bytes_of, seen_alike, seen_of, settings
from helpers.places import ROOT
from reinet.alcc.sums import Sums


@pytest.mark.parametrize("case", ["cancelled_write", "cancelled_poll", "cancelled_sendfile"])
def test_a_thread_is_cancelled_where_it_waits(program: Path, case: str) -> None:
    seen = seen_alike(program, case)
    assert "cancelled 1 late 0" in seen[1]


def test_a_thread_is_cancelled_in_no_call_that_is_no_cancellation_point(program: Path) -> None:
    """It ended the process."""
    seen = seen_of(program, "cancelled_later", settings())
    assert seen[:2] == seen_of(program, "cancelled_later", None)[:2]
    assert seen[1] == ["changed 0 added 0 cancelled 1"]


@pytest.mark.parametrize(
    ("case", "end"),
    [("second_writer_is_interrupted", "second -1 interrupted 1"), ("second_writer_is_cancelled", "cancelled 1 late 0")],
)
def test_who_waits_for_anothers_write_to_end_is_interrupted_there(program: Path, case: str, end: str) -> None:
    assert seen_alike(program, case) == (0, [end, "first 50000"], "")


def test_who_waits_for_anothers_write_to_end_goes_on_in_a_child_too(program: Path) -> None:
    """There the other one is not, and it waited for ever."""
    status, lines, _ = seen_of(program, "second_writer_forks", settings())
    assert status == 0
    assert sorted(lines) == ["first 50000", "second 50000 interrupted 0", "second 50000 interrupted 0", "status 0"]


def test_a_handler_that_interrupts_the_gate_may_fork(program: Path) -> None:
    """It waited for ever for a lock that the thread which it had interrupted held."""
    seen, plain = (seen_of(program, "forks_in_a_handler", asked) for asked in (settings(), None))
    for status, lines, words in (seen, plain):
        held = [line for line in lines if line.startswith("held")]
        assert (status, words) == (0, "")
        assert [line for line in lines if line not in held] == ["child 1000 50000", "parent 1000", "forked"]
    assert held_bytes_of(seen[1]) < MOST_HELD_BYTES < held_bytes_of(plain[1]), "the parent is gated as before"


def test_what_such_a_handlers_child_does_withholds_nothing_from_an_epoll_of_both(program: Path) -> None:
    seen = seen_alike(program, "forks_in_a_handler_beside_an_epoll")
    assert seen[1] == ["writable before the child 1", "writable after the child 1"]


def test_a_thread_with_little_stack_sends_several_buffers(program: Path) -> None:
    assert seen_of(program, "little_stack", settings()) == (0, ["sent 800701"], "")


def test_an_allocator_may_close_descriptors_by_number_while_the_gate_is_made(program: Path, tmp_path: Path) -> None:
    allocator = built(["allocator.cpp"], tmp_path / "allocator.so", "-shared", "-fPIC", "-fno-builtin")
    seen = seen_of(program, "cancelled_write", settings(), preload=f"{allocator}:{{gate}}")
    assert seen[:2] == (0, ["cancelled 1 late 0", "wrote 50000"])


@pytest.mark.parametrize("size", [254_000, 1_000_000])
def test_a_program_may_have_more_thread_local_variables_than_the_gates_stack_has_room_for(
    program: Path, tmp_path: Path, size: int
) -> None:
    """A little less than that stack ended the process, and more let it go."""
    source = tmp_path / "storage.cpp"
    source.write_text(f'thread_local volatile char storage[{size}]; extern "C" char first() {{ return storage[0]; }}')
    storage = built([str(source)], tmp_path / "storage.so", "-shared", "-fPIC")
    seen = seen_of(program, "cancelled_write", settings(), preload=f"{{gate}}:{storage}")
    assert seen == (0, ["cancelled 1 late 0", "wrote 50000"], "")


def test_a_waiting_writes_bytes_never_reach_what_took_its_descriptors_number(program: Path) -> None:
    assert seen_of(program, "number_used_again", settings()) == (0, ["another's bytes 0"], "")


def test_a_socket_that_connects_anew_is_another_connection(program: Path) -> None:
    """Its counts begin at zero: their differences, of 32 bits, told the law of four thousand million packets sent."""
    report = Sums()
    seen = seen_alike(program, "connects_anew", settings("copa", report=report.path))
    assert seen[1] == ["sent 1000000", "dissolved 0", "sent 200000", "dissolved 0"]
    assert report.total()["flows"] == 2


def test_a_waiting_writes_bytes_never_reach_its_sockets_next_connection(program: Path) -> None:
    seen = seen_of(program, "connects_anew_beside_a_waiting_write", settings())
    assert sorted(seen[1]) == sorted(seen_of(program, "connects_anew_beside_a_waiting_write", None)[1])
    assert "another's bytes 0" in seen[1]


def test_a_count_that_was_an_error_sends_nothing(program: Path) -> None:
    """What read() returned when it failed; the kernel refuses it, the gate made pieces of it that it does not."""
    seen = seen_alike(program, "count_below_zero")
    assert seen[1][-1] == "got 0"


def test_who_splices_from_an_empty_pipe_leaves_the_connection_to_others(program: Path) -> None:
    """It held all the room of the gate, and the turn of those that wait: who wrote meanwhile waited for the pipe."""
    seen = seen_alike(program, "splice_from_an_empty_pipe")
    assert "late 0" in seen[1]


def test_a_waiting_write_that_is_let_go_sends_all(program: Path) -> None:
    """It ended short, which no write that waits does: who does not look at the count lost the rest."""
    status, lines, words = seen_of(program, "let_go_in_a_write", settings())
    assert (status, lines) == seen_of(program, "let_go_in_a_write", None)[:2] == (0, ["wrote 1048576"])
    assert words.count("EPOLLONESHOT") == 1


def test_what_brings_nothing_is_answered_at_a_closed_gate_too(program: Path) -> None:
    """What the kernel says of a file or a pipe it says before it looks for room; a call that waits waited for ever."""
    seen = seen_alike(program, "nothing_to_bring")
    assert seen[0] == 0


def test_an_open_gate_asks_nothing_of_a_file_or_a_pipe(program: Path, tmp_path: Path) -> None:
    """Each sendfile was two calls of the kernel, and each splice four."""
    counts = built(["calls.cpp"], tmp_path / "counts.so", "-shared", "-fPIC", "-DCOUNTS")
    plain, told = environment(None), environment(settings("fixed:4000"))
    told["LD_PRELOAD"] += f":{counts}"
    for known in (plain | {"LD_PRELOAD": str(counts)}, told):
        command = [str(program), "files_at_an_open_gate"]
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.stdout == "sent 20000 brought 20000\nsendfile 20 splice 20 ppoll 0\n", done.stderr


@pytest.mark.parametrize("case", ["file_at_its_end", "empty_files", "bad_messages"])
def test_what_is_wrong_with_a_call_is_told_where_there_is_no_room_too(program: Path, case: str) -> None:
    """It was refused for want of room, and a call that waits waited for ever."""
    seen = seen_alike(program, case)
    assert seen[0] == 0


def test_what_pwritev2_writes_at_the_next_place_passes_the_gate(program: Path) -> None:
    seen, plain = (seen_of(program, "buffers_at_the_next_place", asked) for asked in (settings(), None))
    assert seen[0] == plain[0] == 0
    assert seen[1][:-1] == plain[1][:-1]
    assert held_bytes_of(seen[1]) < MOST_HELD_BYTES < held_bytes_of(plain[1])


def test_what_pwritev2_writes_with_flags_passes_the_gate_too(program: Path) -> None:
    """With the flags for files that a connection takes all of it went past the gate."""
    seen, plain = (seen_of(program, "buffers_with_flags", asked) for asked in (settings(), None))
    assert seen == plain
    assert {"flag 100 0", "flag -1 11"} <= set(seen[1])


def test_no_call_takes_more_than_the_kernels_own(program: Path) -> None:
    """A count beyond 2 GB is below zero for who keeps it in an int."""
    assert seen_alike(program, "more_than_a_call_takes", settings("fixed:4000")) == (0, ["wrote 2147479552 0"], "")


@pytest.mark.parametrize("case", ["opens_with_data", "opens_with_a_message"])
def test_what_opens_a_connection_is_gated_beyond_its_first_segments(program: Path, case: str) -> None:
    """A call that waited for the connection had the kernel take all that it was given, however much."""
    seen, plain = (seen_of(program, case, asked) for asked in (settings(), None))
    for status, lines, words in (seen, plain):
        assert (status, words) == (0, "")
        assert sorted(line for line in lines if not line.startswith("held")) == ["got 1048576", "sent 1048576 0"]
    assert held_bytes_of(seen[1]) < 10 * 1448 < held_bytes_of(plain[1])


def test_what_the_kernel_does_not_look_at_may_point_anywhere(program: Path) -> None:
    """A deletion's event and the array of a senseless count were read, which ended the process."""
    seen = seen_alike(program, "what_is_not_looked_at")
    assert seen[1] == ["added 0 0", "deleted 0 0", "polled -1 22"]


@pytest.mark.parametrize("case", ["large_sets", "many_in_a_small_set"])
def test_select_waits_at_a_closed_gate_whatever_number_it_is_told(program: Path, case: str) -> None:
    """Beyond the usual 1024 a closed gate was called writable, and the program asked again without end."""
    seen = seen_alike(program, case)
    assert seen[1][0] == "full 0 0"


@pytest.mark.parametrize("case", ["poll_at_the_end", "select_at_the_end"])
def test_a_connection_that_ends_at_a_closed_gate_is_writable(program: Path, case: str) -> None:
    seen_alike(program, case)


def test_select_waits_at_a_closed_gate_for_seconds_in_microseconds_too(program: Path) -> None:
    """A closed gate was called writable at once, and the program asked again without end."""
    assert seen_alike(program, "many_microseconds") == (0, ["full 0 0", "read 1 0"], "")


def test_of_two_closed_gates_only_the_one_that_opens_is_writable(program: Path) -> None:
    """Both were called so, and who wrote into the other one was refused."""
    seen_alike(program, "one_of_two_opens")


def test_who_polls_many_closed_gates_looks_at_them_no_oftener_than_the_gate(program: Path) -> None:
    """All of a thousand were looked at every 10 ms."""
    assert seen_alike(program, "waits_for_many") == (0, ["ready 0 looks few"] * 2, "")


def test_every_call_that_the_preload_has_is_shown() -> None:
    """Else a program calls the C library's own, and nothing says so."""
    shown = set(re.findall(r"\w+(?=;)", (ROOT / "alcc/symbols.map").read_text()))
    hooks = {
        name
        for file in (ROOT / "alcc/preload").glob("*.cpp")
        for name in re.findall(r"^REINET_HOOK .*?(\w+)\(", file.read_text(), re.M)
    }
    assert {"write", "pwritev2", "epoll_ctl"} <= hooks
    assert {name for name in hooks if not name.startswith("reinet_alcc_")} == shown


def test_a_zero_copy_send_that_is_cut_tells_once_that_its_buffer_is_free(program: Path) -> None:
    seen = seen_alike(program, "zero_copies")
    assert seen[1][-1] == "told 2"


def test_a_process_that_sandboxes_itself_is_let_alone_and_that_is_said(program: Path) -> None:
    report = Sums()
    status, lines, words = seen_of(program, "sandbox", settings(report=report.path))
    assert (status, lines) == seen_of(program, "sandbox", None)[:2] == (0, ["set 0", "wrote 1000"])
    assert words.count("seccomp") == 1
    assert report.total()["bytes"] == 1, "what was sent before is reported"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a namespace in which no thread can be made")
def test_a_process_that_the_gate_gave_up_on_may_sandbox_itself(program: Path) -> None:
    """It was killed at its end, by a report that its filter forbade."""
    report = Sums()
    seen, plain = (seen_of(program, "sandbox_after_giving_up", asked) for asked in (settings(report=report.path), None))
    assert seen[:2] == plain[:2] == (0, ["unshared 0", "wrote 1000", "set 0"])
    assert seen[2].count("nothing of process") == 1
    assert report.total()["flows"] == 1


@pytest.mark.parametrize("law", ["fixed:8", "copa"])
def test_a_write_that_waits_at_the_gate_goes_on_where_another_thread_sandboxes_itself(program: Path, law: str) -> None:
    seen, plain = (seen_of(program, "sandbox_beside_a_waiting_write", asked) for asked in (settings(law), None))
    assert seen[0] == plain[0] == 0
    assert sorted(seen[1]) == sorted(plain[1]) == ["set 0", "wrote 50000"], "which is first is chance"
    assert seen[2].count("seccomp") == 1


def test_another_thread_changes_its_user_while_one_leaves_the_gate(program: Path) -> None:
    for _ in range(20):
        status, lines, _ = seen_of(program, "sandbox_beside_a_change_of_user", settings())
        assert (status, sorted(lines)) == (0, ["changed 0", "set 0"])


@pytest.mark.parametrize("case", ["nobody_listens", "nobody_reads", "full_log", "data_as_standard_error"])
def test_what_the_gate_has_to_say_neither_ends_a_program_nor_goes_into_its_data(program: Path, case: str) -> None:
    assert "EPOLLONESHOT" in seen_of(program, "told_once", settings())[2]
    seen_alike(program, case)


def test_a_process_enters_a_namespace_that_is_for_one_thread_only(program: Path) -> None:
    seen_alike(program, "namespace_of_users")


def test_a_child_made_past_fork_waits_for_no_lock_of_another_thread(program: Path) -> None:
    assert seen_of(program, "clones_beside_connections", settings()) == (0, ["ended 500"], "")


def test_what_a_child_sent_is_counted_however_it_ends(program: Path) -> None:
    """Its connection is the child's alone: the parent has none to tell of."""
    report = Sums()
    assert seen_of(program, "child_is_killed", settings(report=report.path))[0] == 0
    total = report.total()
    assert (total["processes"], total["flows"], total["bytes"]) == (1, 1, 1000)


@pytest.mark.parametrize(
    "case", ["main_thread_ends_first", "main_thread_ends_before_a_gate_closes", "main_thread_sends_as_it_ends"]
)
def test_a_process_whose_main_thread_ends_ends_with_the_last_of_the_others(program: Path, case: str) -> None:
    report = Sums()
    seen_alike(program, case, settings(report=report.path))
    assert report.total()["bytes"] > 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which it gives up")


@needs_root
@pytest.mark.parametrize("case", ["no_more_processes", "no_more_processes_of_another_user"])
def test_a_process_that_forbids_itself_processes_is_gated(program: Path, case: str) -> None:
    status, lines, words = seen_of(program, case, settings())
    assert (status, words) == (0, "")
    assert held_bytes_of(lines) < MOST_HELD_BYTES < held_bytes_of(seen_of(program, case, None)[1])


@needs_root
def test_privileges_that_a_program_of_one_thread_gives_up_are_gone(program: Path) -> None:
    """The gate's thread kept them: the kernel changes those of the calling thread alone."""
    seen, plain = (seen_of(program, "gives_up_privileges", asked) for asked in (settings(), None))
    assert (seen[0], seen[2]) == (plain[0], plain[2]) == (0, "")
    assert seen[1][::2] == plain[1][::2]
    assert len(seen[1]) == 16
    assert all(line.endswith(" 0 kept by 0") for line in seen[1][::2])
    assert all(held_bytes_of([line]) < MOST_HELD_BYTES for line in seen[1][1::2]), "the gate's thread is there again"


@needs_root
def test_where_the_gates_thread_cannot_begin_again_closed_gates_open(program: Path) -> None:
    status, lines, words = seen_of(program, "no_thread_after_all", settings())
    assert (status, lines) == (0, ["writable 1"])
    assert "no thread can be made" in words


@needs_root
def test_where_the_gates_thread_cannot_begin_again_a_write_that_waits_goes_on(program: Path) -> None:
    status, lines, words = seen_of(program, "no_thread_for_a_waiting_write", settings())
    assert (status, lines) == (0, ["wrote 50000"])
    assert "no thread can be made" in words


@needs_root
def test_a_process_made_past_fork_is_gated_also_where_it_has_its_parents_number(program: Path) -> None:
    status, lines, _ = seen_of(program, "made_past_fork", settings())
    plain = seen_of(program, "made_past_fork", None)
    assert [status, *(line for line in lines if not line.startswith("held"))] == [
        plain[0],
        *(line for line in plain[1] if not line.startswith("held")),
    ]
    assert "number 1 wrote 50000" in lines
    assert held_bytes_of(lines) < MOST_HELD_BYTES < held_bytes_of(plain[1])


@pytest.mark.parametrize("law", ["fixed:8", "copa"])
def test_a_gate_takes_little_address_space(program: Path, law: str, tmp_path: Path) -> None:
    """The C library gave the gate's thread 64 MB, which a server under ``ulimit -v`` lacked for threads of its own."""
    status, lines, _ = seen_of(program, "address_space", settings(law, records=tmp_path / "records"))
    assert status == 0
    assert held_bytes_of(lines) < 8 << 20


def test_a_handler_that_interrupts_malloc_writes_into_new_connections(program: Path) -> None:
    """What is remembered of them was allocated by the malloc that it had interrupted, which waited for itself."""
    assert seen_of(program, "handler_within_malloc", settings()) == (0, ["written 200"], "")


def test_a_program_without_memory_goes_on_ungated(program: Path) -> None:
    seen, plain = (seen_of(program, "no_memory_left", asked) for asked in (settings(), None))
    assert seen[:2] == plain[:2] == (0, ["begins", "wrote 1000", "got 1000"])
    assert "there is no memory left: nothing of process" in seen[2]


def test_a_program_without_memory_to_wait_at_a_gate_waits_without_one(program: Path) -> None:
    """It ended by SIGABRT."""
    seen, plain = (seen_of(program, "no_memory_left_to_wait", asked) for asked in (settings(), None))
    assert seen[:2] == plain[:2] == (0, ["polled -1", "polled -1"])
    assert "there is no memory left: nothing of process" in seen[2]


@pytest.mark.parametrize("law", ["rule", "sprout"])
def test_a_crowd_whose_gate_gets_no_more_pages_of_the_kernel_goes_on_ungated(program: Path, law: str) -> None:
    """The gate's thread, or a write, ended it by SIGABRT."""
    status, lines, words = seen_of(program, "no_pages_left", settings(law))
    assert (status, lines) == (0, ["begins", "ends"])
    assert "there is no memory left: nothing of process" in words


def test_a_connection_of_an_initial_window_costs_no_look(program: Path) -> None:
    """Each of nginx's with 1 KB woke the gate's thread and made 22 system calls of the gate's."""
    report = Sums()
    status, lines, words = seen_of(program, "short_connections", settings("rule:1", always=False, report=report.path))
    plain = seen_of(program, "short_connections", None)[1]
    assert (status, words) == (0, "")
    assert lines[:-1] == plain[:-1]
    assert lines[-2] == "threads 1"
    assert held_bytes_of(lines[-1:]) == 2, "who sends more is looked at"
    total = report.total()
    assert (total["flows"], total["bytes"]) == (51, 50 * 1240 + 20 * 1000), "all are reported"


@pytest.mark.parametrize("case", ["own_descriptors_by_unshare", "own_descriptors_by_close_range"])
def test_a_connection_closed_in_descriptors_of_ones_own_ends(program: Path, case: str) -> None:
    """The gate's thread kept the others, and with them the connection: its peer waited for an end without end."""
    seen, plain = (seen_of(program, case, asked) for asked in (settings(), None))
    assert seen[0] == plain[0] == 0
    assert seen[1][:-1] == plain[1][:-1] == ["took 0", "end 0"]
    assert held_bytes_of(seen[1]) < MOST_HELD_BYTES < held_bytes_of(plain[1]), "the gate's thread is there again"


def test_a_thread_with_descriptors_of_its_own_is_let_go_and_the_others_are_not(program: Path) -> None:
    seen, plain = (seen_of(program, "own_descriptors_of_a_thread", asked) for asked in (settings(), None))
    assert seen[1][:-1] == plain[1][:-1] == ["took 0", "got 50000"]
    assert held_bytes_of(seen[1]) < MOST_HELD_BYTES < held_bytes_of(plain[1])
    assert "its thread has descriptors of its own" in seen[2]


@needs_root
def test_a_connection_whose_state_is_restored_is_let_go(program: Path) -> None:
    """What is written into it is acknowledged by nobody until that is done: a closed gate never opened."""
    seen, plain = (seen_of(program, "restored", asked) for asked in (settings(), None))
    assert seen[:2] == plain[:2] == (0, ["repairs 0", "restored 300000"])
    assert "TCP_REPAIR" in seen[2]


def test_a_fork_waits_for_a_lock_of_who_writes(tmp_path: Path) -> None:
    """A library's handler waits for it; the gate had taken its own locks by then, and the write waited for one."""
    library = built(["handlers.cpp"], tmp_path / "libhandlers.so", "-shared", "-fPIC", "-DHANDLERS")
    writer = built(["handlers.cpp"], tmp_path / "writer", f"-Wl,-rpath,{tmp_path}", f"-Wl,--no-as-needed,{library}")
    assert seen_alike(writer, "forks") == (0, ["forks 300"], "")

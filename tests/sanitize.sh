#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs tests against native parts built with sanitizers, in a build folder and an environment of their own.
# Usage: PYTHON=.venv/bin/python tests/sanitize.sh address|thread [PYTEST-ARGUMENTS]
#   address  address, undefined-behaviour and leak sanitizers
#   thread   the thread sanitizer
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
case ${1:-} in
  address) sanitizers=address,undefined library=libasan.so ;;
  thread) sanitizers=thread library=libtsan.so ;;
  *)
    sed -n '4,6s/^# //p' "$0" >&2
    exit 2
    ;;
esac
folder=$PWD/build/sanitize-$1
shift

# Beside the packages of that interpreter, but not its build of reinet.
if [ ! -x "$folder/venv/bin/python" ]; then
  "$python" -m venv "$folder/venv"
  site=$("$folder/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  "$python" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' >"$site/others.pth"
fi
# What builds reinet stands there, too: an environment of pip's own has another path each time, which is part of every
# compile command, so everything would be built anew.
"$folder/venv/bin/python" -m pip --quiet install cmake ninja $("$folder/venv/bin/python" -c '
from pip._vendor import tomli
print(*tomli.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
# -O1 is what the sanitizers' authors advise, and half a compiler's time.
CC=gcc CXX=g++ "$folder/venv/bin/python" -m pip --quiet install --no-deps --no-build-isolation -e . \
  -C build-dir="$folder/build" -C cmake.build-type=None -C cmake.define.CMAKE_C_FLAGS="-O1 -g1" \
  -C cmake.define.CMAKE_CXX_FLAGS="-O1 -g1" -C cmake.define.REINET_SANITIZE="$sanitizers"

# The interpreter knows nothing of sanitizers: their library, and the C++ library whose throw it wraps, must come first.
preload="$(g++ -print-file-name="$library") $(g++ -print-file-name=libstdc++.so.6)"
# Reports go into files: the tests read what programs print. Leaks leave a program's exit status alone, for the
# interpreter and other packages keep much until the end; those of ours are looked for below.
reports=$folder/report
rm -f "$reports".*
status=0
# Left out: the wheel, which is a build of its own; and Ray, which forks out of many threads, where the sanitizers'
# allocator may lock up for good.
leave_out="--deselect tests/end-to-end/test_wheel.py --deselect tests/end-to-end/test_train.py::test_ray_workers_are_repeatable_and_resume_exactly"
# The thread sanitizer has a thread of its own in each process, which wakes up ten times a second.
[ $sanitizers = address,undefined ] ||
  leave_out="$leave_out --deselect tests/unit/alcc/test_gate.py::test_idle_connections_wake_nobody"
alcc=tests/unit/alcc
# To it a descriptor that is closed while another thread writes is a fault, and so is a handler that writes, though that
# is what is tried there; and of two allocators it knows one.
[ $sanitizers = address,undefined ] || for one in \
  waits.py::test_a_waiting_write_takes_nothing waits.py::test_a_fork_beside_a_first_write \
  waits.py::test_a_handler_does_not_wait_for_the_write_that_it_interrupted \
  "waits.py::test_a_handler_in_a_wait_for_something_else_is_gated_and_so_is_the_thread_that_it_jumps_out_of[writes_in_a_handler]"; do
  leave_out="$leave_out --deselect $alcc/test_$one"
done
# The address sanitizer ends programs from which these take what it needs itself: address space, threads, system calls,
# or the allocator. Of a wait at a closed gate that a handler jumps out of, its memory stays.
[ $sanitizers = thread ] || for one in \
  corners.py::test_an_allocator_may_close_descriptors corners.py::test_a_socket_that_connects_anew \
  corners.py::test_a_process_that_the_gate_gave_up_on corners.py::test_a_write_that_waits_at_the_gate_goes_on_where \
  corners.py::test_a_process_that_forbids_itself corners.py::test_where_the_gates_thread_cannot_begin_again \
  corners.py::test_a_program_without_memory waits.py::test_a_fork_beside_a_first_write \
  "waits.py::test_a_handler_in_a_wait_for_something_else_is_gated_and_so_is_the_thread_that_it_jumps_out_of[jumps_out_of_poll_at_a_closed_gate]"; do
  leave_out="$leave_out --deselect $alcc/test_$one"
done
# The sanitizers forbid core files by setrlimit() before they are ready themselves; the gate has a hook there, which is
# built with them and would be too early.
ulimit -c 0
# Within poll() and select() the thread sanitizer takes no notice of locks, for in a kernel's own there are none: it calls
# a race what the gate's hooks there (alcc/preload/readiness.cpp) do under one.
suppressions=$folder/suppressions
printf 'race:^%s$\n' poll ppoll select pselect >"$suppressions"
# Python's own allocator would hide what lies in its pools. Shadow memory has its place, which a randomised address
# space may take. Programs under the gate (alcc/) inherit all this, with the gate's library behind it. Those programs fork
# and go on with a thread, which the thread sanitizer would not have; and at a fork the gate holds every flow's lock, 64 and
# more, which is beyond what that sanitizer's detector of deadlocks can count.
env LD_PRELOAD="$preload" PYTHONMALLOC=malloc \
  ASAN_OPTIONS="log_path=$reports:abort_on_error=1:detect_stack_use_after_return=1:verify_asan_link_order=0:disable_coredump=0" \
  LSAN_OPTIONS="exitcode=0:stack_trace_format='    #%n %F %L in %m'" UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1 \
  TSAN_OPTIONS="log_path=$reports:abort_on_error=1:halt_on_error=1:die_after_fork=0:detect_deadlocks=0:disable_coredump=0:suppressions=$suppressions" \
  setarch --addr-no-randomize "$folder/venv/bin/python" -m pytest $leave_out "$@" || status=$?

for report in "$reports".*; do
  [ -f "$report" ] || continue
  # A leak's stack, a paragraph, in which a module of ours stands; of other faults everything.
  ours=$(awk -v RS= '/reinet\/(core|kshim|envs\/sim|alcc)\/(_|lib\/)/ || (/ERROR|WARNING|runtime error/ && !/LeakSanitizer/)' "$report")
  [ -z "$ours" ] || { printf '%s:\n%s\n' "$report" "$ours" && status=1; }
done
exit $status

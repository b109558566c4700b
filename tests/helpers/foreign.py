"""A sockops program of somebody else on a cgroup: it counts its calls. By raw ``bpf(2)``: nothing of ours is in it."""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
_MAP_CREATE, _LOOKUP, _PROG_LOAD, _PROG_ATTACH = 0, 1, 5, 8
_ARRAY, _SOCK_OPS_PROGRAM, _SOCK_OPS = 2, 13, 3
_ALLOW_MULTI = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = _libc.syscall(_BPF, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf {command}")
    return int(result)


def _instruction(code: int, registers: int, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, registers, offset, value)


def _program(map_fd: int) -> bytes:
    """Returns what adds one to the map's value and says 1."""
    return b"".join(
        [
            _instruction(0x62, 0x0A, -4, 0),  # *(u32 *)(r10 - 4) = 0
            _instruction(0xBF, 0xA2),  # r2 = r10
            _instruction(0x07, 0x02, 0, -4),  # r2 += -4
            _instruction(0x18, 0x11, 0, map_fd) + _instruction(0, 0),  # r1 = map
            _instruction(0x85, 0x00, 0, 1),  # r0 = bpf_map_lookup_elem(r1, r2)
            _instruction(0x15, 0x00, 2, 0),  # if r0 == 0 goto +2
            _instruction(0xB7, 0x01, 0, 1),  # r1 = 1
            _instruction(0xDB, 0x10, 0, 0),  # lock *(u64 *)r0 += r1
            _instruction(0xB7, 0x00, 0, 1),  # r0 = 1
            _instruction(0x95, 0x00),  # exit
        ]
    )


class Foreign:
    """The program while it is attached."""

    def __init__(self, cgroup: Path) -> None:
        self._map = _bpf(_MAP_CREATE, struct.pack("=IIII", _ARRAY, 4, 8, 1))
        code = ctypes.create_string_buffer(_program(self._map))
        licence = ctypes.create_string_buffer(b"GPL")
        self._program = _bpf(
            _PROG_LOAD,
            struct.pack(
                "=IIQQ", _SOCK_OPS_PROGRAM, (len(code) - 1) // 8, ctypes.addressof(code), ctypes.addressof(licence)
            ),
        )
        folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", folder, self._program, _SOCK_OPS, _ALLOW_MULTI))
        finally:
            os.close(folder)

    def calls(self) -> int:
        """Returns how often it was called."""
        key, value = ctypes.c_uint32(0), ctypes.c_uint64(0)
        _bpf(_LOOKUP, struct.pack("=IIQQQ", self._map, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
        return value.value

    def close(self) -> None:
        """Lets go of it; the cgroup's end detaches it."""
        os.close(self._program)
        os.close(self._map)


@contextmanager
def foreign_sockops(cgroup: Path) -> Iterator[Foreign]:
    """Attaches the program to a cgroup for as long as that lives."""
    foreign = Foreign(cgroup)
    try:
        yield foreign
    finally:
        foreign.close()

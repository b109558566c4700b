"""Import of recordings: units, missing values, states, resampling, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reinet.core.errors import TraceError
from reinet.envs.trace.importers import import_trace
from reinet.envs.trace.trace import Trace

HEADER = "Timestamp,Speed,NetworkMode,DL_bitrate,UL_bitrate,State,PINGAVG\n"


def write(folder: Path, text: str | bytes, name: str = "recording") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def phone(*rows: tuple[str, str, str]) -> str:
    return HEADER + "".join(f"2020.02.14_{time},2,LTE,{rate},9,{state},-\n" for time, rate, state in rows)


def mbps_per_second(times_ms: np.ndarray) -> list[float]:
    return (np.bincount((times_ms.astype(int) - 1) // 1000) * 0.012).tolist()


def test_seconds_and_mbps(tmp_path: Path) -> None:
    imported = import_trace(write(tmp_path, "5.0\t1.2\n6.0\t2.4\n7.0\t0\n8.0\t0.6\n"))
    assert (imported.format, imported.lines, imported.left_out_s) == ("s-mbps", 4, 0.0)
    assert imported.trace.duration_ms == 4000  # from the first line; the last one holds as long as lines are apart
    # 1.2 Mbit/s are 100 packets of 1500 bytes, one every 10 ms; the second with rate 0 is an outage.
    assert mbps_per_second(imported.trace.opportunities_ms) == pytest.approx([1.2, 2.4, 0, 0.6])
    assert imported.trace.opportunities_ms[:3].tolist() == [10, 20, 30]
    assert imported.trace.describe()["longest_gap_ms"] == 1020


def test_milliseconds_and_kbps(tmp_path: Path) -> None:
    imported = import_trace(write(tmp_path, "137.0 600.0\n3137.0 600.0\n3237.0 1200.0\n4137.0 1200.0\n"))
    assert imported.format == "ms-kbps"
    assert imported.trace.duration_ms == 4900  # the median step, 900 ms, is added
    assert mbps_per_second(imported.trace.opportunities_ms)[:3] == pytest.approx([0.6, 0.6, 0.6])


def test_hours_in_milliseconds_are_told_from_seconds(tmp_path: Path) -> None:
    """Two hours are 7.2 million ms, more than a trace may have seconds."""
    imported = import_trace(write(tmp_path, "".join(f"{k * 1000} 1200\n" for k in range(7200))))
    assert imported.format == "ms-kbps"
    assert imported.trace.duration_ms == 7_200_000
    assert imported.trace.mean_mbps == pytest.approx(1.2)


def test_more_seconds_than_a_trace_holds_are_milliseconds(tmp_path: Path) -> None:
    """Lines 60 apart may be slow seconds or quick milliseconds; 50 days of the former are none."""
    lines = [f"{k * 60} 1200\n" for k in range(72_000)]
    assert import_trace(write(tmp_path, "".join(lines))).format == "ms-kbps"
    with pytest.raises(TraceError, match="units are not plain"):
        import_trace(write(tmp_path, "".join(lines[:71_000])))


@pytest.mark.parametrize("step", [100, 200, 500, 1000])
def test_round_steps_that_are_no_minutes_are_milliseconds(tmp_path: Path, step: int) -> None:
    lines = [f"{k * step} {1000 + k}\n" for k in range(50)]
    assert import_trace(write(tmp_path, "".join(lines))).format == "ms-kbps"


def test_the_remainder_is_carried(tmp_path: Path) -> None:
    # A third of a packet in each second: one packet every three seconds, not none in each.
    imported = import_trace(write(tmp_path, "".join(f"{k} 0.004\n" for k in range(30))))
    assert imported.trace.opportunities_ms.tolist() == list(range(3000, 30_001, 3000))


def test_phone_log(tmp_path: Path) -> None:
    text = phone(
        ("09.38.22", "1200", "D"),
        ("09.38.22", "3600", "D"),  # the same second: their mean, 2.4 Mbit/s
        ("09.38.24", "0", "D"),  # two seconds later; nothing for one second
        ("09.38.25", "9000", "I"),  # not downloading: left out
        ("09.38.26", "-", "D"),  # not measured: left out
        ("09.38.27", "600", "D"),
        ("09.38.47", "1200", "D"),  # the line before counts for 10 of the 20 s
    )
    imported = import_trace(write(tmp_path, text))
    assert (imported.format, imported.lines) == ("phone-csv", 7)
    assert imported.left_out_s == pytest.approx(2 + 10)
    assert imported.trace.duration_ms == 2000 + 1000 + 10_000 + 1000
    expected = [2.4, 2.4, 0] + [0.6] * 10 + [1.2]
    assert mbps_per_second(imported.trace.opportunities_ms) == pytest.approx(expected, abs=0.012)


def test_phone_log_of_another_shape(tmp_path: Path) -> None:
    text = "\ufeffTimestamp,UL_bitrate\r\n2020-02-14T23:59:59Z,1200\r\n2020-02-15T00:00:00Z,1200\r\n"
    imported = import_trace(write(tmp_path, text), column="UL_bitrate")
    assert imported.trace.mean_mbps == pytest.approx(1.2)
    assert imported.trace.duration_ms == 2000


def test_a_phone_log_whose_fields_stand_in_quotes_is_found_out_too(tmp_path: Path) -> None:
    """R writes a header so, and many a program every field."""
    text = '"State","Timestamp","DL_bitrate"\n"D","2020-02-14T23:59:59Z","1200"\n"D","2020-02-15T00:00:00Z","1200"\n'
    imported = import_trace(write(tmp_path, text))
    assert (imported.format, imported.trace.duration_ms) == ("phone-csv", 2000)


def test_mahimahi_is_taken_as_it_is(tmp_path: Path) -> None:
    imported = import_trace(write(tmp_path, "0\n0\n7\n"))
    assert (imported.format, imported.trace.opportunities_ms.tolist()) == ("mahimahi", [0, 0, 7])


def test_what_an_editor_put_around_mahimahis_numbers_is_taken_away(tmp_path: Path) -> None:
    """Trace.load refuses it and points here, where it was refused with the same words."""
    path = write(tmp_path, "\ufeff0 \r\n 7\t\n")
    with pytest.raises(TraceError, match="byte-order mark: reinet traces import takes that away"):
        Trace.load(path)
    imported = import_trace(path)
    assert (imported.format, imported.trace.opportunities_ms.tolist()) == ("mahimahi", [0, 7])
    with pytest.raises(TraceError, match=r":2: '1 2' is not a whole number"):
        import_trace(write(tmp_path, "1\n1 2\n"))


rates = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 50)), min_size=2, max_size=40)


@given(rates=rates, step_s=st.floats(0.1, 10))
def test_rate_and_length_are_kept(tmp_path_factory: pytest.TempPathFactory, rates: list[float], step_s: float) -> None:
    assume(sum(rates) * step_s > 0.1)  # some packets at least
    folder = tmp_path_factory.mktemp("import")
    in_seconds = write(folder, "".join(f"{k * step_s:.9f} {rate!r}\n" for k, rate in enumerate(rates)), "s")
    trace = import_trace(in_seconds, "s-mbps").trace
    duration_s = step_s * len(rates)
    assert trace.duration_ms == pytest.approx(duration_s * 1000, abs=1)
    packets = sum(rates) * step_s * 1e6 / 8 / 1500
    assert packets - 1.001 <= trace.opportunities_ms.size <= packets + 1.001
    in_ms = write(folder, "".join(f"{k * step_s * 1e3:.6f},{rate * 1e3!r}\n" for k, rate in enumerate(rates)), "ms")
    other = import_trace(in_ms, "ms-kbps").trace
    assert abs(other.opportunities_ms.size - trace.opportunities_ms.size) <= 1


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "empty"),
        (b"1 2\n\x00", 2, "not text"),
        (b"1 2\n3 4\n\xff", 3, "not text"),
        (b"\x1f\x8b\x08\x00\n", 1, "unpack"),
        ("hello world\n", 1, "none of the formats known"),
        ("# s, Mbit/s\n0 1\n1 2\n", 1, "delete what stands above"),
        ("0;1\n1;2\n", 1, "blanks or a comma between"),
        ("1 2 3\n", 1, "none of the formats known"),
        ("0 1\n1 x\n", 2, "'x' is not a rate"),
        ("0 1\n1 nan\n", 2, "'nan' is not a rate"),
        ("0 1\n1 -3\n", 2, "negative rate"),
        ("0 1\n\n1 1\n", 2, "empty line"),
        ("0 1\n1\n", 2, "has 1 values"),
        ("0 1\n5 1\n4 1\n", 3, "time goes back by 1 s"),
        ("0 1\nx 1\n", 2, "not a time"),
        ("0 1\n9e9 1\n", 2, "more than a trace can hold"),
        (HEADER + "2020.02.14_09.38.22,2,LTE,1,9,D\n", 2, "6 fields where the header has 7"),
        (HEADER + "yesterday,2,LTE,1,9,D,-\n", 2, "'yesterday' is not a timestamp"),
        (HEADER + "2020.02.14_09.38.22,2,LTE,fast,9,D,-\n", 2, "'fast' is not a rate"),
        (HEADER + '2020.02.14_09.38.22,"2"x,LTE,1,9,D,-\n', 2, "not valid CSV"),
        (phone(("09.38.22", "1", "D"), ("09.38.21", "1", "D")), 3, "time goes back"),
        (HEADER.replace("DL_", "D_"), 1, "column DL_bitrate is there not at all"),
    ],
)
def test_refuses_with_file_line_and_what(tmp_path: Path, text: str | bytes, line: int, what: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=rf"^{re.escape(str(path))}:{line}: ") as caught:
        import_trace(path)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("text", "format_name", "what"),
    [
        ("0 1\n1 1\n", "pcap", "unknown format"),
        ("0 1\n", None, "too few lines"),
        ("0 0\n1 0\n2 0\n", None, "no line has a rate above 0"),
        ("\ufeff\n", "phone-csv", "the file is empty"),
        ("0 400000\n1 400000\n2 400000\n", None, "units are not plain"),
        ("0 0.1\n500 0.1\n1000 0.1\n", None, "units are not plain"),
        (
            "0 2500\n1 2510\n2 2500\n",
            None,
            "typically 1 apart with a rate of 2500: the units are not plain; say --format",
        ),
        ("0 300\n1 400\n2 350\n", None, "units are not plain"),  # 5G in Mbit/s, or 3G in kbit/s
        ("0 1200\n1000000 1200\n2000000 1200\n", None, "units are not plain"),  # a second in microseconds
        ("0 250\n60 310\n120 280\n", None, "typically 60 apart with a rate of 280: the units are not plain"),
        ("0 250\n900 310\n1800 280\n", None, "units are not plain"),  # a modem's quarters of an hour
        ("0 20\n1000 21\n2000 20\n", None, "say --format s-mbps, s-kbps, ms-mbps, ms-kbps"),
        ("0 400000\n1 400000\n", "s-mbps", "check the unit"),
        ("0 0\n1 0\n", "s-mbps", "recording has no rate"),
        ("0 -\n1 -\n", "s-mbps", "no line has a measured rate"),
        ("3 1\n3 1\n", "s-mbps", "fewer than two lines"),
        ("0 90000\n100000 90000\n", "s-mbps", "more than a trace of this length"),
        ("0 0\n4294967 1e-6\n", "s-mbps", r"8589934 s are more than a trace can hold .* lasts for 4\.29497e\+06 s"),
        (phone(("09.38.22", "5", "I"), ("09.38.23", "5", "I")), None, "no line has a measured rate"),
    ],
)
def test_refuses_what_makes_no_trace(tmp_path: Path, text: str, format_name: str | None, what: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=what):
        import_trace(path, format_name)


@given(st.text(alphabet="0123456789 .,-\nTimestampDL_bitrate", max_size=60))
def test_any_text_is_converted_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.mktemp("text"), text)
    try:
        imported = import_trace(path)
    except TraceError:
        return
    assert imported.trace.duration_ms > 0


@pytest.mark.parametrize(
    ("text", "format_name"),
    [("0 12\n1 12\n", "s-mbps"), ("0 12000\n1 12000\n", "s-kbps"), ("0 12\n1000 12\n", "ms-mbps"),
     ("0 12000\n1000 12000\n", "ms-kbps")],
)  # fmt: skip
def test_a_time_and_a_rate_have_the_units_that_the_format_says(tmp_path: Path, text: str, format_name: str) -> None:
    trace = import_trace(write(tmp_path, text), format_name).trace
    assert trace.opportunities_ms.size == 2000, "12 Mbit/s for 2 s are 2000 packets of 1500 bytes"
    with pytest.raises(TraceError, match="--column is for phone-csv, and this is " + format_name):
        import_trace(write(tmp_path, text), format_name, column="x")

"""What ``reinet models fleet`` shows of daemons' hold-outs."""

import pytest

from reinet.cli.service.models import hold_out


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, ""),
        ({"of": 1.0, "another": 2.0, "version": 3.0}, ""),
        ({"capped_flows": 4.0, "plain_flows": 1.0}, "4 capped and 1 plain flows"),
        (
            {"delay": 0.5, "delay_low": 0.4, "delay_high": 0.6, "throughput": 0.97, "throughput_low": 0.9,
             "capped_flows": 40.0, "plain_flows": 10.0, "stood_down": 1.0},
            "stood down, delay 0.50 (0.40 to 0.60), throughput 0.97, 40 capped and 10 plain flows",
        ),
    ],
)  # fmt: skip
def test_a_hold_out_is_told_in_a_line(figures: dict[str, float], words: str) -> None:
    assert hold_out(figures) == words

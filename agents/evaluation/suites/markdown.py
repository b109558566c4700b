"""A report as a page of Markdown: a table for each scenario, pictures, what changed, and what made it."""

from collections.abc import Mapping, Sequence
from typing import Any

from reinet.agents.evaluation.plan import labelled, training_notes
from reinet.agents.evaluation.suites import better
from reinet.agents.evaluation.suites.report import Report

Row = Mapping[str, Any]

COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("throughput_mbps", "Mbit/s", 2),
    ("utilization", "utilisation", 3),
    ("qdelay_mean_ms", "mean delay (ms)", 1),
    ("qdelay_p95_ms", "p95 (ms)", 1),
    ("throughput_kept", "throughput kept", 3),
    ("delay_left", "mean delay left", 3),
    ("p95_left", "p95 left", 3),
    ("jain", "Jain's index", 3),
    ("share", "share", 3),
    ("beside_mbps", "other: Mbit/s", 2),
    ("beside_harm", "other: harm", 3),
    ("beside_qdelay_mean_ms", "other: mean delay (ms)", 1),
    ("beside_delay_ratio", "other: delay against alone", 2),
    ("longest_stall_ms", "longest stall (ms)", 0),
)
"""Key, heading, digits. A table has those that one of its cells has."""
STALLS_BESIDE_OTHERS = ("longest_stall_ms",)
"""Of a lone flow the trace's own gaps decide it."""

LEAST_REFUSED = 0.005
"""Of the decisions: refusals below that move no figure of a line by more than its digits."""

MEANING = (
    "*Delay* is queueing delay at the bottleneck, per packet. *Kept* and *left* are ratios to plain congestion control "
    "on the same link, seed and start, formed for each pair of runs and then averaged. *Harm* is the share of its "
    "throughput that the plain flow beside lost against having the queue to itself."
)


def page(report: Report, pictures: Sequence[tuple[str, str]] = (), against: Mapping[str, Any] | None = None) -> str:
    """Returns the page; ``pictures`` are (scenario, file name), ``against`` what ``compare`` found."""
    suite, runs = report["suite"], report["runs"]
    lines = [f"# {suite['title']}", "", suite["about"], ""]
    if report["replaced"]:
        lines += [f"**What follows is not the suite as it is described.** {' '.join(report['replaced'])}", ""]
    lines += ["Made by:", "", "```sh", report["command"], "```", ""]
    lines += [f"{runs['valid']} of {runs['planned']} runs are valid and in the tables." + _left_out(runs)]
    if report["generated_traces"]:
        lines += ["", "**No traces were given: links are generated from presets** (docs/traces.md), not recorded."]
    lines += ["", report["intervals"], "", MEANING]
    for spec in report["scenarios"]:
        cells = [cell for cell in report["cells"] if cell["scenario"] == spec["name"] and cell["role"] == "run"]
        if cells:
            lines += ["", f"## {spec['name']}", "", *_about(spec, cells), "", *table(cells)]
            seen = labelled(row for row in report["rows"] if row["scenario"] == spec["name"])
            said = [*better.sentences(report["better_in_both"], spec["name"]), *_refusals(cells), *training_notes(seen)]
            lines += [line for one in said for line in ("", one)]
        lines += [
            line for scenario, file in pictures if scenario == spec["name"] for line in ("", f"![{file}]({file})")
        ]
    if report["not_compared"]:
        lines += ["", "## Not compared", "", *(f"- {one['name']}: {one['reason']}" for one in report["not_compared"])]
    if against is not None:
        lines += ["", *_changes(against)]
    return "\n".join([*lines, "", *_provenance(report)]) + "\n"


def _left_out(runs: Row) -> str:
    text = ""
    if runs["invalid"]:
        text += f" {runs['invalid']} runs were not valid (the host lagged, or nothing got through) and are in none."
    if runs["not_made"]:
        text += f" {runs['not_made']} could not be made here: {'; '.join(runs['not_made_because'])}."
    if runs["of_other_definitions"]:
        text += (
            f" The store holds {runs['of_other_definitions']} other runs, left out: of scenarios or repetitions that "
            "were not asked for, or of other definitions, models or code."
        )
    return text


def _about(spec: Row, cells: Sequence[Row]) -> list[str]:
    path = ", ".join(f"{key} = {value}" for key, value in spec["path"].items())
    most = max(cell["runs"] for cell in cells)
    least = min(cell["runs"] for cell in cells)
    runs = f"{most} runs" if least == most else f"{least} to {most} runs"
    where = "simulated" if spec["link"] == "sim" else "real kernel sockets over Mahimahi"
    return [spec["about"], "", f"{where}, {spec['seconds']:g} s, {runs} a line" + (f"; {path}." if path else ".")]


def _refusals(cells: Sequence[Row]) -> list[str]:
    """Returns a sentence where flows of a line ran uncapped for some of their time, or all of it: its figures do not
    tell."""
    refused, plain = [], []
    for cell in cells:
        place = {**cell["point"], **{key: cell[key] for key in ("flows", "beside") if cell[key] not in (1, None)}}
        at = f" ({', '.join(f'{key} {_plain(value)}' for key, value in place.items())})" if place else ""
        line = f"{cell['agent']} over {cell['cc']}{at}"
        share, capped = (cell["numbers"].get(f"{what}_share", {"mean": None})["mean"] for what in ("refused", "capped"))
        if (share or 0.0) >= LEAST_REFUSED:
            refused.append(f"{line} {100 * share:.1f} %")
        elif capped == 0 and cell["flows"] == 1:  # of several the share is the first one's
            plain.append(line)
    told = []
    if refused:
        told.append(
            f"The guard refused caps, and flows ran uncapped, in so many of the decisions: {', '.join(refused)}."
        )
    if plain:
        told.append(
            f"No cap acted in any run of {', '.join(plain)}: what stands there are plain congestion control's figures."
        )
    return told


def table(cells: Sequence[Row]) -> list[str]:
    """Returns a table of some cells: what tells them apart, then every number that one of them has."""
    keys = [key for key in ("flows", "beside") if any(cell[key] != cells[0][key] for cell in cells) or cells[0][key]
            not in (1, None)]  # fmt: skip
    swept = list(dict.fromkeys(key for cell in cells for key in cell["point"]))
    several = any("jain" in cell["numbers"] or cell["beside"] for cell in cells)
    columns = [
        column
        for column in COLUMNS
        if any(column[0] in cell["numbers"] for cell in cells) and (several or column[0] not in STALLS_BESIDE_OTHERS)
    ]
    head = ["agent", "cc", *keys, *swept, *(heading for _, heading, _ in columns), "runs"]
    lines = [_line(head), _line(["---"] * len(head))]
    for cell in cells:
        values = [cell["agent"], cell["cc"], *(_plain(cell[key]) for key in keys)]
        values += [_plain(cell["point"].get(key)) for key in swept]
        values += [shown(cell["numbers"].get(name), digits) for name, _, digits in columns]
        lines.append(
            _line([*values, str(cell["runs"]) + (f" (+{cell['invalid']} invalid)" if cell["invalid"] else "")])
        )
    return lines


def shown(number: Row | None, digits: int) -> str:
    """Returns a number with its interval."""
    if number is None:
        return ""
    if number["low"] is None:
        return f"{number['mean']:.{digits}f} [one run]"
    return f"{number['mean']:.{digits}f} [{number['low']:.{digits}f}, {number['high']:.{digits}f}]"


def _changes(against: Mapping[str, Any]) -> list[str]:
    shaped = against["shaped_by"] or ["nothing: suite, agents, traces, versions and code are the same"]
    lines = ["## What changed", "", "What shaped the two reports differently:", "", *(f"- {one}" for one in shaped), ""]
    changed = [one for one in against["changes"] if one["verdict"] == "changed"]
    lines += [
        f"{against['changed']} of {against['tested']} figures changed by more than noise (the interval of the "
        f"difference leaves out 0); of so many {against['expected_by_chance']:g} would by chance alone. "
        f"{sum(one['verdict'] == 'same' for one in against['changes'])} are the same to the last bit, "
        f"{sum(one['verdict'] == 'too few runs' for one in against['changes'])} have too few runs to tell.",
    ]
    if changed:
        lines += ["", _line(["scenario", "agent", "cc", "cell", "figure", "before", "after", "difference", "pairs"])]
        lines.append(_line(["---"] * 9))
        for one in changed:
            place = {**one["point"], **{key: one[key] for key in ("flows", "beside") if one[key] not in (1, None)}}
            where = ", ".join(f"{key} {value}" for key, value in place.items())
            pairs = f"{one['difference']['runs']}" + ("" if one["paired"] else " (not paired)")
            lines.append(_line([one["scenario"], one["agent"], one["cc"], where, one["metric"], f"{one['before']:.3f}",
                                f"{one['after']:.3f}", shown(one["difference"], 3), pairs]))  # fmt: skip
    return lines


def _provenance(report: Report) -> list[str]:
    lines = ["## What made it", "", f"- suite {report['suite']['name']}: sha256 {report['suite']['sha256']}"]
    lines += [f"- {name}: {value}" for name, value in report["made_by"].items() if value is not None]
    lines += [f"- agent {one['name']}: {one['identity']}" for one in report["agents"] if one["name"] != one["identity"]]
    lines += [
        f"- trace {one['name']} ({one['mean_mbps']:g} Mbit/s): sha256 {one['sha256']}" for one in report["traces"]
    ]
    return lines


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _plain(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

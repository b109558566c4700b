"""``reinet models``: the registry of a training service, and the daemons that follow it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reinet.cli.output import JsonOption, check_folder, console, print_table, say, tell_table, write_json
from reinet.cli.service.reach import ago, client, reach, span

app = typer.Typer(
    help="Manage a training service's models: list, show, compare, pull, promote, rollback, history, fleet, gc.",
    no_args_is_help=True,
)
app.callback()(reach)

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name such as production, latest, or a sha256's beginning.")
]
NameOption = Annotated[str, typer.Option("--to", help="The name that is to point to it.")]
WhyOption = Annotated[str, typer.Option(help="The reason, for the record.")]
KEPT = {"throughput": "throughput_ratio", "delay": "qdelay_ratio", "frontier": "frontier_mean", "score": "score"}
"""Columns of the table and the metrics of a manifest that they show."""
COLUMNS = ["sha256", "name", "pointers", *KEPT, "job", "owner", "created"]


def _row(model: dict[str, Any]) -> dict[str, Any]:
    return {
        **model,
        **{column: model["metrics"].get(metric) for column, metric in KEPT.items()},
        "sha256": model["sha256"][:12],
        "pointers": ", ".join(model["pointers"]),
        "created": ago(model["created_s"]),
    }


@app.command("list")
def list_(json_destination: JsonOption = None) -> None:
    """List models with their figures of training and the names that point to them. Example: reinet models list."""
    with client() as trainer:
        models = trainer.models()
    tell_table(json_destination, {"rows": models}, [_row(model) for model in models], COLUMNS)


@app.command()
def show(model: ModelArgument, json_destination: JsonOption = None) -> None:
    """Show where a model comes from: job, parent, traces, seed, figures. Example: reinet models show production."""
    with client() as trainer:
        found = trainer.model(model)
        lines = [line for line in trainer.history() if found["sha256"] in (line["model"], line["before"])]
    write_json(json_destination, {**found, "history": lines})
    if json_destination != "-":
        for key in ("sha256", "name", "pointers", "job", "owner", "parent", "seed", "code_version", "schema_hash"):
            say(
                (f"{key:>14}  ", "bold"), str(found[key] if not isinstance(found[key], list) else ", ".join(found[key]))
            )
        print_table([{"figure": key, "value": value} for key, value in found["metrics"].items()], ["figure", "value"])
        print_table(found["traces"], ["name", "role", "licence", "sha256"])
        _print_history(lines)


@app.command()
def compare(first: ModelArgument, second: ModelArgument, json_destination: JsonOption = None) -> None:
    """Compare figures and configurations of two models. Example: reinet models compare production canary."""
    with client() as trainer:
        one, other = trainer.model(first), trainer.model(second)
    figures = [
        {"figure": key, "first": one["metrics"].get(key), "second": other["metrics"].get(key)}
        for key in dict.fromkeys([*one["metrics"], *other["metrics"]])
    ]
    ours, theirs = _flat(one["config"]), _flat(other["config"])
    changed = [
        {"key": key, "first": str(ours.get(key)), "second": str(theirs.get(key))}
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]
    sha256s = [{use["sha256"] for use in model["traces"]} for model in (one, other)]
    only = [len(sha256s[0] - sha256s[1]), len(sha256s[1] - sha256s[0])]
    write_json(json_destination, {"models": [one["sha256"], other["sha256"]], "rows": figures, "configuration": changed,
                          "traces_only_in": only})  # fmt: skip
    if json_destination != "-":
        say(f"first {one['sha256'][:12]} {one['name']}, second {other['sha256'][:12]} {other['name']}")
        print_table(figures, ["figure", "first", "second"])
        print_table(changed, ["key", "first", "second"], title="configuration")
        say(f"{only[0]} traces only in the first, {only[1]} only in the second")


@app.command()
def pull(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="The folder that gets it, under its sha256.")] = Path("runs/models"),
    json_destination: JsonOption = None,
) -> None:
    """Fetch a model's folder and check it. Example: reinet models pull production --out runs/models."""
    check_folder("--out", out)
    with client() as trainer:
        folder = trainer.pull(model, out)
    say(f"model {folder}")
    write_json(json_destination, {"model": str(folder), "manifest_sha256": folder.name})


@app.command()
def promote(
    model: ModelArgument,
    name: NameOption = "production",
    why: WhyOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Move the name whatever the gate finds; the record says so.")
    ] = False,
    json_destination: JsonOption = None,
) -> None:
    """Point a name to a model, once the gate has measured that it is no worse than the one before.

    Examples:

        reinet models promote 0123456789ab --why "week 14"

        reinet models promote 0123456789ab --to canary
    """
    with client() as trainer, console.status("measuring"):
        done = trainer.promote(model, name, why, force, lambda what: say(what) if not console.is_terminal else None)
    forced = " (forced)" if done["forced"] else ""
    say((name, "bold"), f" points to {done['model'][:12]}{forced}; the gate: {done['gate']}")
    write_json(json_destination, done)


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="The name to point back.")] = "production",
    why: WhyOption = "",
    json_destination: JsonOption = None,
) -> None:
    """Point a name to the model before. Example: reinet models rollback production --why "more retransmissions"."""
    with client() as trainer:
        done = trainer.rollback(name, why)
    say((name, "bold"), f" points to {done['model'][:12]} again")
    write_json(json_destination, done)


@app.command()
def history(
    name: Annotated[str, typer.Argument(help="A name; none = all.")] = "", json_destination: JsonOption = None
) -> None:
    """List promotions and roll-backs: who, when, why. Example: reinet models history production."""
    with client() as trainer:
        lines = trainer.history(name)
    write_json(json_destination, {"rows": lines})
    if json_destination != "-":
        _print_history(lines)


@app.command()
def fleet(json_destination: JsonOption = None) -> None:
    """List daemons that follow a name: what each runs, what its hold-out says, and when it was last seen.

    hold_out has capped flows' figures over plain ones', with the ends of their intervals. Example: reinet models fleet
    """
    with client() as trainer:
        rows = trainer.fleet()
    shown = [{**row, "model": row["model"][:12], "seen": span(row["seen_s"]) + " ago",
              "hold_out": hold_out(row["figures"])} for row in rows]  # fmt: skip
    columns = ["daemon", "name", "model", "seen", "version", "hold_out", "problem", "owner"]
    tell_table(json_destination, {"rows": rows}, shown, columns)


@app.command()
def gc(
    older_than_days: Annotated[float, typer.Option(min=0, max=36500, help="Only models older than this.")] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, remove nothing.")] = False,
    json_destination: JsonOption = None,
) -> None:
    """Remove models that no name points to or pointed to, and no daemon runs. Example: reinet models gc --dry-run."""
    with client() as trainer:
        found = trainer.gc(older_than_days, dry_run)
    verb = "would go" if dry_run else "removed"
    say(f"{len(found['removed'])} models {verb}, {found['freed_bytes'] / 1e6:.1f} MB")
    write_json(json_destination, found)


def hold_out(figures: dict[str, float]) -> str:
    """Returns in a line what a daemon's hold-out says (``daemon/followed.py``), whatever a daemon sent."""
    words = [name.replace("_", " ") for name in ("stood_down", "quarantined") if figures.get(name)]
    for name in ("delay", "throughput", "completion"):
        if name in figures:
            ends = [f"{figures[key]:.2f}" for key in (f"{name}_low", f"{name}_high") if key in figures]
            words.append(f"{name} {figures[name]:.2f}" + (f" ({' to '.join(ends)})" if len(ends) == 2 else ""))
    if flows := [f"{figures[key]:.0f} {key[:-6]}" for key in ("capped_flows", "plain_flows") if key in figures]:
        words.append(" and ".join(flows) + " flows")
    return ", ".join(words)


def _print_history(lines: list[dict[str, Any]]) -> None:
    rows = [{**line, "model": line["model"][:12], "before": line["before"][:12], "when": ago(line["when_s"])}
            for line in lines]  # fmt: skip
    print_table(rows, ["number", "kind", "name", "model", "before", "who", "when", "forced", "why", "gate"])


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix.rstrip("."): data}
    return {key: value for name, inner in data.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}

"""Recordings to train on: found, weighted, divided by content, refused where they leak, and told of by name."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reinet.agents.learn.config import TraceSection, TrainConfig
from reinet.agents.learn.links import domain_of, selection_links, selection_traces, training_traces
from reinet.agents.learn.recordings import recordings
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace


def save(path: Path, mbps: float, seconds: float = 6.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return Trace.constant(mbps, seconds).save(path, overwrite=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight recordings in one folder, one beside it; commands are started here."""
    for mbps in range(1, 9):
        save(tmp_path / "lte" / f"{mbps}.down", mbps)
    save(tmp_path / "other.trace", 20.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def section(*sets: Any, **fields: Any) -> TraceSection:
    return TraceSection.model_validate({"presets": [], "sets": list(sets), **fields})


def config(*sets: Any, **fields: Any) -> TrainConfig:
    small = {"train_count": 4, "select_count": 2, "seconds": 5.0}
    return TrainConfig.model_validate({"traces": {**small, "sets": list(sets), **fields}})


def contents(traces: Any) -> set[str]:
    return {trace.sha256 for trace in traces}


def set_file(path: Path, name: str, *files: str) -> Path:
    path.write_text(f'[set]\nname = "{name}"\nfiles = [{", ".join(f"{file!r}" for file in files)}]\n')
    return path


# --- what is found, and how often it is drawn ---


def test_files_folders_and_set_files_are_found_from_where_the_command_runs(folder: Path) -> None:
    set_file(folder / "mine.toml", "mine", "lte/1.down", "other.trace")
    for path, count in (("lte", 8), ("other.trace", 1), ("mine.toml", 2), (str(folder / "lte"), 8)):
        found = recordings(section(path))
        assert len(found.uses) == count
        assert contents(found.learn) | contents(found.select) == {use.sha256 for use in found.uses}


def test_a_variable_of_the_environment_stands_for_its_value(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TRACES", str(folder))
    for path in ("$MY_TRACES/lte", "${MY_TRACES}/lte"):
        assert len(recordings(section(path)).uses) == 8
    monkeypatch.delenv("MY_TRACES")
    with pytest.raises(ConfigError, match=r"traces\.sets: \$MY_TRACES/lte: the environment has no \$MY_TRACES"):
        recordings(section("$MY_TRACES/lte"))


def test_flows_run_over_sets_and_generated_traces_by_weight(folder: Path) -> None:
    settings = config(
        {"path": "lte", "weight": 2.0, "role": "train"}, {"path": "other.trace", "role": "train"}, presets_weight=0.5
    )
    domain, rng = domain_of(settings.links, training_traces(settings)), np.random.default_rng(1)
    names = Counter(
        link.trace.name for link in (domain.draw(rng) for _ in range(1400)) if isinstance(link.trace, Trace)
    )
    own = [f"{mbps}.down" for mbps in range(1, 9)]
    assert sum(names[name] for name in own) / 1400 == pytest.approx(2 / 3.5, abs=0.05)
    assert names["other.trace"] / 1400 == pytest.approx(1 / 3.5, abs=0.05)
    assert all(names[name] / 1400 == pytest.approx(0.25 / 3.5, abs=0.04) for name in own)
    assert len(names) == 8 + 1 + 4


def test_a_copy_in_a_set_does_not_double_its_weight(folder: Path) -> None:
    save(folder / "lte" / "copy.down", 1.0)
    learn = recordings(section({"path": "lte", "weight": 4.0, "role": "train"})).learn
    assert len(learn) == 8
    assert {trace.weight for trace in learn} == {0.5}
    both = recordings(section({"path": "lte", "role": "train"}, {"path": "lte/1.down", "role": "train"})).learn
    assert sum(trace.weight for trace in both) == pytest.approx(2.0)


def test_without_sets_training_has_the_generated_traces_it_always_had() -> None:
    traces = training_traces(config())
    assert len(traces) == 4
    assert {type(trace) for trace in traces} == {Trace}
    assert len(selection_traces(config())) == 2


# --- the split ---


def test_the_split_is_by_content_whatever_names_and_order_say(folder: Path) -> None:
    first = recordings(section("lte"))
    assert (len(first.learn), len(first.select)) == (6, 2)
    for mbps in range(1, 9):
        save(folder / "renamed" / f"{9 - mbps}-again.trace", mbps)
    second = recordings(section("renamed"))
    assert contents(second.select) == contents(first.select)
    together = recordings(section("renamed", "lte"))  # every content twice
    assert contents(together.select) == contents(first.select)
    assert len(together.uses) == 16
    assert not contents(together.learn) & contents(together.select)


def test_the_share_to_select_by_is_the_users(folder: Path) -> None:
    assert len(recordings(section("lte", select_share=0.5)).select) == 4
    assert len(recordings(section("lte", select_share=0.01)).select) == 1
    assert len(recordings(section("lte", select_share=0.99)).learn) == 1
    assert not recordings(section("lte", select_share=0.0)).select
    assert not recordings(section("other.trace")).select


def test_sets_of_the_split_command_keep_their_roles(folder: Path) -> None:
    set_file(folder / "train.toml", "train", *(f"lte/{mbps}.down" for mbps in (1, 2, 3)))
    set_file(folder / "validation.toml", "validation", "lte/4.down", "lte/5.down")
    set_file(folder / "test.toml", "test", "lte/6.down")
    found = recordings(section("train.toml", "validation.toml", "test.toml", "other.trace"))
    assert {trace.name for trace in found.learn} == {"1.down", "2.down", "3.down", "other.trace"}
    assert {trace.name for trace in found.select} == {"4.down", "5.down"}
    assert Trace.load("lte/6.down").sha256 not in {use.sha256 for use in found.uses}
    said = recordings(section({"path": "validation.toml", "role": "train"}))
    assert len(said.learn) == 2


def test_a_role_that_is_said_goes_before_the_hash(folder: Path) -> None:
    held_back = recordings(section("lte")).select[0]
    assert held_back.path is not None
    found = recordings(section("lte", {"path": str(held_back.path), "role": "train"}))
    assert held_back.sha256 in contents(found.learn)
    assert held_back.sha256 not in contents(found.select)


# --- leaks ---


def test_a_tests_content_under_another_name_is_refused(folder: Path) -> None:
    save(folder / "innocent.trace", 6.0)
    with pytest.raises(ConfigError, match=r"innocent\.trace has the content of lte/6\.down, which is a test's"):
        recordings(section("innocent.trace", {"path": "lte/6.down", "role": "test"}))


def test_one_content_in_two_roles_is_refused(folder: Path) -> None:
    save(folder / "innocent.trace", 6.0)
    with pytest.raises(ConfigError, match=r"lte/6\.down \(train\) and innocent\.trace \(validation\) have the same"):
        recordings(section({"path": "lte", "role": "train"}, {"path": "innocent.trace", "role": "validation"}))


@pytest.mark.parametrize("forbid", ["judge", "judge/renamed.trace", "judge.toml"])
def test_what_is_forbidden_is_refused_by_content(folder: Path, forbid: str) -> None:
    save(folder / "judge" / "renamed.trace", 3.0)
    set_file(folder / "judge.toml", "judge", "judge/renamed.trace")
    message = r"lte/3\.down has the content of judge/renamed\.trace, which traces\.forbid names"
    with pytest.raises(ConfigError, match=message):
        recordings(section("lte", forbid=[forbid]))
    with pytest.raises(ConfigError, match=message):
        recordings(section({"path": "lte", "role": "validation"}, forbid=[forbid]))
    assert recordings(section("other.trace", forbid=[forbid])).learn


@pytest.mark.parametrize("of", [training_traces, selection_traces])
def test_a_generated_trace_that_is_forbidden_is_refused(folder: Path, of: Any) -> None:
    generated = of(config())[1].save(folder / "judge.trace")
    with pytest.raises(ConfigError, match=r"seed\d+ has the content of judge\.trace, which traces\.forbid names"):
        of(config(forbid=[str(generated.name)]))


# --- what cannot be ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"traces\.sets: bad\.trace: no such file"),
        ("", r"traces\.sets: bad\.trace:1: the file is empty"),
        ("1\nx\n", r"traces\.sets: bad\.trace:2: 'x' is not a whole number"),
        ("5\n4\n", r"traces\.sets: bad\.trace:2: time goes back"),
        ("1\n2\n1000\n", r"traces\.sets: bad\.trace lasts 1 s, and 5 s is the least"),
    ],
)
def test_a_bad_recording_is_named(folder: Path, content: str | None, message: str) -> None:
    if content is not None:
        (folder / "bad.trace").write_text(content)
    with pytest.raises(ConfigError, match=message):
        recordings(section("lte", "bad.trace"))


def test_a_path_to_forbid_must_be_there_too(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"traces\.forbid: gone: no such file"):
        recordings(section("lte", forbid=["gone"]))


def test_something_is_left_to_learn_from_and_to_select_by(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no recording is left to choose among checkpoints by"):
        selection_links(config("other.trace", presets=[]))
    with pytest.raises(ConfigError, match="no recording is left to learn from"):
        training_traces(config({"path": "lte", "role": "validation"}, presets=[]))
    assert len(training_traces(config("other.trace"))) == 5  # generated ones select


# --- lineage ---


def test_every_file_is_told_of_with_role_and_content(folder: Path) -> None:
    save(folder / "lte" / "copy.down", 1.0)
    set_file(folder / "mine.toml", "validation", "other.trace")
    uses = recordings(section("lte", "mine.toml")).uses
    assert sorted(use.name for use in uses) == sorted(
        ["validation/other.trace", "lte/copy.down", *(f"lte/{mbps}.down" for mbps in range(1, 9))]
    )
    by_name = {use.name: use for use in uses}
    assert by_name["validation/other.trace"].role == "select"
    assert by_name["lte/copy.down"].role == by_name["lte/1.down"].role
    for name, use in by_name.items():
        assert use.sha256 == Trace.load(name.replace("validation/", "")).sha256


def test_a_name_that_is_no_utf_8_is_written_out_as_a_checkpoint_can_hold_it(folder: Path) -> None:
    save(folder / "swiss" / os.fsdecode(b"Z\xfcrich.trace"), 3.0)
    (use,) = recordings(section("swiss")).uses
    assert json.loads(use.model_dump_json())["name"] == r"swiss/Z\udcfcrich.trace"


def test_a_scaled_trace_is_told_of_by_its_source(folder: Path) -> None:
    settings = TrainConfig.model_validate({"traces": {"presets": [], "sets": ["lte"]}, "links": {"rate_scale": [2, 2]}})
    link = domain_of(settings.links, training_traces(settings)).draw(np.random.default_rng(0))
    assert isinstance(link.trace, Trace)
    uses = recordings(settings.traces).uses
    assert link.trace.sha256 not in {use.sha256 for use in uses}
    assert link.trace.name.removesuffix(" x 2") in {use.name.removeprefix("lte/") for use in uses}

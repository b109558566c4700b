"""The agents that serve: baselines, names, the guard, and what a model folder must be to be loaded."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx import TensorProto, helper

from helpers.models import edit_manifest
from helpers.places import ROOT
from reinet.agents.decide.baselines import Clairvoyant, FixedCap, NoCap, RandomCap, Rule
from reinet.agents.decide.names import NAMES, make_agent, make_agents, split_names
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.roccet import Roccet
from reinet.agents.decide.verdicts import Why, target_too_tight, text
from reinet.agents.learn.export import onnx_bytes
from reinet.agents.model.artifact import (
    CARD_FILE,
    MANIFEST_FILE,
    ONNX_FILE,
    WEIGHTS_FILE,
    Manifest,
    Schema,
    TraceUse,
    Training,
    load_artifact,
    used_traces,
    write_artifact,
)
from reinet.agents.model.mlp import Folded, Layer, act
from reinet.agents.model.period import PeriodTable
from reinet.core import (
    DEFAULT_FEATURE_SET,
    FEATURE_SETS,
    FLOW_STATS_DTYPE,
    MIN_CAP_PKTS,
    Normaliser,
    PeriodConfig,
    calm_caps,
    caps_from_actions,
    schema_hash,
)
from reinet.core.errors import ConfigError, ModelError
from reinet.core.guard import VERDICT_DTYPE, Guard
from reinet.core.states.caps import INVALID_CAP_PKTS

STATE_SIZE = FEATURE_SETS[DEFAULT_FEATURE_SET].state_size
SHA = "ab" * 32


def layers(seed: int = 0, bias: float = 0.0) -> list[Layer]:
    rng = np.random.default_rng(seed)
    sizes = [(16, STATE_SIZE), (8, 16), (1, 8)]
    made = [(rng.normal(0, 0.3, size).astype(np.float32), np.zeros(size[0], np.float32)) for size in sizes]
    made[-1][1][0] = bias
    return made


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "format": 1,
        "name": "test",
        "schema": Schema(feature_set=DEFAULT_FEATURE_SET, head="bdp", hash=schema_hash(DEFAULT_FEATURE_SET, "bdp")),
        "period": PeriodTable(min_ms=20.0, packet_timed=False),
        "normaliser": Normaliser.reference().to_dict(),
        "target_range_ms": (25.0, 100.0),
        "congestion_controls": ["cubic"],
        "training": Training(
            seed=1, env_steps=0, updates=0, config={}, traces=[TraceUse(name="t", sha256=SHA, role="train")]
        ),
        "versions": {},
        "metrics": {},
        "files": {},
    }
    return Manifest(**{**values, **changes})


def write_model(folder: Path, onnx_data: bytes | None = None, **changes: Any) -> Path:
    made = layers()
    files = {
        ONNX_FILE: onnx_bytes(Folded(made)) if onnx_data is None else onnx_data,
        WEIGHTS_FILE: safetensors.numpy.save({"0.weight": made[0][0]}),
        CARD_FILE: b"# test\n",
    }
    write_artifact(folder, files, manifest(**changes))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def records(count: int, **fields: Any) -> Any:
    stats = np.zeros(count, FLOW_STATS_DTYPE)
    values = {"min_rtt_us": 20_000, "rtt_mean_us": 30_000, "target_us": 50_000, "cwnd_pkts": 40, "mss_bytes": 1448}
    for name, value in {**values, **fields}.items():
        stats[name] = value
    return stats


# --- policy ---


def test_policy_gives_the_caps_of_the_network(model: Path) -> None:
    policy = Policy.load(model)
    states = np.random.default_rng(1).normal(size=(7, STATE_SIZE)).astype(np.float32)
    stats, rule = records(7), np.linspace(0, 60, 7, dtype=np.float32)
    actions = act(Folded(layers()), states)
    np.testing.assert_allclose(policy.outputs(states), actions, atol=1e-5)
    np.testing.assert_array_equal(
        policy.decide(stats, states, rule), caps_from_actions("bdp", actions, stats["cwnd_pkts"], rule)
    )
    assert policy.view.normaliser == Normaliser.reference()
    assert policy.decide(stats[:0], states[:0], rule[:0]).shape == (0,)


@pytest.mark.parametrize("name", ["default", "per-rtt", "small"])
def test_a_shipped_manifest_is_written_as_it_was_before_later_keys(name: str) -> None:
    """Its hash is the model's identity, and a daemon from before a key refuses a manifest that has it."""
    artifact = load_artifact(ROOT / "checkpoints" / name)
    assert artifact.manifest.to_bytes() == (artifact.folder / MANIFEST_FILE).read_bytes()


def test_a_calm_model_follows_its_network_and_one_whose_manifest_does_not_say_so_obeys_at_once(tmp_path: Path) -> None:
    calm, hasty = (Policy.load(write_model(tmp_path / str(rtts), calm_rtts=rtts)) for rtts in (1.0, 0.0))
    states = np.random.default_rng(1).normal(size=(50, STATE_SIZE)).astype(np.float32)
    stats = records(50, cap_pkts=400, period_ns=5_000_000, time_ns=np.arange(50) * 5_000_000)
    rule = np.full(50, 60, np.float32)
    wanted = hasty.decide(stats, states, rule)
    np.testing.assert_array_equal(calm.decide(stats, states, rule), calm_caps(wanted, stats, 1.0))
    edit_manifest(tmp_path / "1.0", lambda data: data.pop("calm_rtts"))
    np.testing.assert_array_equal(Policy.load(tmp_path / "1.0").decide(stats, states, rule), wanted)
    edit_manifest(tmp_path / "0.0", lambda data: data.update(calm_rtts=-1))
    with pytest.raises(ModelError, match="calm_rtts"):
        Policy.load(tmp_path / "0.0")


def test_a_network_without_a_finite_answer_leaves_the_flow_uncapped(tmp_path: Path) -> None:
    policy = Policy.load(write_model(tmp_path / "nan", onnx_bytes(Folded(layers(bias=float("nan"))))))
    stats = records(2)
    caps = policy.decide(stats, np.zeros((2, STATE_SIZE), np.float32), np.full(2, 30, np.float32))
    assert caps.tolist() == [INVALID_CAP_PKTS] * 2
    caps, reasons = judged(stats, caps)
    assert caps.tolist() == [0, 0]
    assert set(reasons) == {Why.NOT_FINITE}


# --- the model folder ---


def test_pinned_manifest(model: Path) -> None:
    digest = load_artifact(model).manifest_sha256
    assert load_artifact(model, digest).manifest_sha256 == digest
    with pytest.raises(ModelError, match=r"manifest\.json: sha256 is .* is pinned"):
        load_artifact(model, "0" * 64)


@pytest.mark.parametrize("name", [ONNX_FILE, WEIGHTS_FILE, CARD_FILE])
def test_a_changed_file_is_refused(model: Path, name: str) -> None:
    (model / name).write_bytes((model / name).read_bytes() + b"\n")
    with pytest.raises(ModelError, match=rf"{name}: sha256 is"):
        load_artifact(model)


@pytest.mark.parametrize("name", [ONNX_FILE, WEIGHTS_FILE, CARD_FILE, MANIFEST_FILE])
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises(ModelError, match=rf"{name}: No such file"):
        load_artifact(model)


def test_another_schema_hash_is_refused(tmp_path: Path) -> None:
    other = Schema(feature_set=DEFAULT_FEATURE_SET, head="bdp", hash=schema_hash(DEFAULT_FEATURE_SET, "cwnd"))
    folder = write_model(tmp_path / "model", schema=other)
    with pytest.raises(ModelError, match=r"schema hash .* does not match"):
        load_artifact(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=2), "format"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("normaliser"), "normaliser"),
        (lambda m: m["normaliser"].clear(), "normaliser"),
        (lambda m: next(iter(m["normaliser"].values())).update(m2=-1.0), "normaliser"),
        (lambda m: m["schema"].update(head="rate"), "head 'rate' is unknown"),
        (lambda m: m["schema"].update(feature_set="other"), "feature set 'other' is unknown"),
        (lambda m: m["period"].pop("min_ms"), "period: .*min_ms is missing"),
        (lambda m: m["files"].pop(ONNX_FILE), "files"),
        (lambda m: m.update(target_range_ms=[50, 20]), "target_range_ms"),
    ],
)
def test_a_damaged_manifest_is_refused(model: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit_manifest(model, change)
    with pytest.raises(ModelError, match=message):
        load_artifact(model)


@pytest.mark.parametrize("content", [b"", b"{", b"\0\1\2", b"[]"])
def test_a_manifest_that_is_no_json_object_is_refused(model: Path, content: bytes) -> None:
    (model / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ModelError, match=r"manifest\.json"):
        load_artifact(model)


def _graph(nodes: list[Any], width: int = STATE_SIZE, out: str = "actions", **model: Any) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["batch", 1])],
    )
    return bytes(helper.make_model(graph, **model).SerializeToString())


def _external() -> bytes:
    model = onnx.load_model_from_string(onnx_bytes(Folded(layers())))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no model", "not an ONNX model"),
        (_external(), "lies outside the file"),
        (_graph([helper.make_node("Gelu2", ["states"], ["actions"], domain="mine")]), "operator set 'mine'"),
        (_graph([helper.make_node("If", ["states"], ["actions"])]), "uses operator If"),
        (_graph([helper.make_node("Tanh", ["states"], ["actions"])], width=7), r"states\['batch', 7\]"),
        (_graph([helper.make_node("Tanh", ["states"], ["a"])], out="a"), r"where float32 actions\[batch, 1\]"),
    ],
)
def test_an_onnx_file_that_is_no_plain_actor_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    folder = write_model(tmp_path / "model", data)
    with pytest.raises(ModelError, match=message):
        load_artifact(folder)


def test_writing_replaces_a_model_but_nothing_else(tmp_path: Path, model: Path) -> None:
    write_model(model, name="newer")
    assert load_artifact(model).manifest.name == "newer"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelError, match="not a model folder"):
        write_model(tmp_path / "mine")
    (model / "NOTES.md").write_text("why this one")
    with pytest.raises(ModelError, match=r"holds NOTES\.md beside what a model's folder holds, which would be lost"):
        write_model(model)
    (model / "NOTES.md").unlink()
    (tmp_path / "mine" / "thesis.txt").rename(tmp_path / "mine" / MANIFEST_FILE)
    with pytest.raises(ModelError, match="is no model's of this version"):
        write_model(tmp_path / "mine")
    assert (tmp_path / "mine" / MANIFEST_FILE).read_text() == "years of work"
    (tmp_path / "current").symlink_to(model)
    write_model(tmp_path / "current", name="newest")
    assert load_artifact(model).manifest.name == "newest"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current", "mine", "model"]


def test_traces_that_shaped_a_model_are_found_by_content(model: Path) -> None:
    found = used_traces(Policy.load(model).trace_uses, [("one", SHA), ("other", "cd" * 32), ("one", "ef" * 32)])
    assert [(name, use.name) for name, use in found] == [("one", "t")]  # another of the same name hides none


# --- names ---


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("none", NoCap),
        ("fixed:25", FixedCap),
        ("rule", Rule),
        ("rule:1.25", Rule),
        ("clairvoyant:10", Clairvoyant),
        ("random", RandomCap),
        ("roccet", Roccet),
    ],
)
def test_names(name: str, kind: type) -> None:
    assert isinstance(make_agent(name), kind)


def test_the_help_of_evaluate_names_every_agent() -> None:
    said = (ROOT / "cli" / "evaluate.py").read_text().replace("rule[:G]", "rule, rule:G")
    assert [form for form in NAMES if not re.search(rf'help="[^"]*(?<!\w){form}(?![\w:])', said)] == []


def test_a_model_folder_is_a_name(model: Path) -> None:
    assert isinstance(make_agent(str(model)), Policy)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("non", "did you mean 'none'"),
        ("", "neither a folder nor"),
        ("none:3", "write it as none"),
        ("fixed", "write it as fixed:N"),
        ("fixed:", "write it as fixed:N"),
        ("fixed:2.5", "whole number of packets"),
        ("fixed:3", r"in \[4, 40000\]"),
        ("fixed:many", "plain number"),
        ("rule:nan", "plain number"),
        ("rule:0", r"in \(0, 100\]"),
        ("clairvoyant:-1", "milliseconds"),
        ("no/such/folder", "there is no such folder in the working directory; name a model's"),
        ("y" * 300, "File name too long"),
        ("/", "not a model folder"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_agent(name)


def test_the_clairvoyant_needs_the_simulator() -> None:
    with pytest.raises(ConfigError, match=r"name it where links are simulated \(--link sim\)"):
        make_agent("clairvoyant:10", link="mahimahi")
    with pytest.raises(ConfigError, match=r"name it where links are simulated \(--link sim\)"):
        Clairvoyant(10).decide(records(1), np.zeros((1, STATE_SIZE), np.float32), np.zeros(1, np.float32))


def test_the_clairvoyant_keeps_the_least_cap() -> None:
    """One packet in the next round trip: a cap of two would be refused, and the flow uncapped where its link stalls."""
    agent = Clairvoyant([0, 10])
    agent.bind(lambda horizons_ms: np.array([2, 17], np.uint32))
    caps = agent.decide(records(2), np.zeros((2, STATE_SIZE), np.float32), np.zeros(2, np.float32))
    assert caps.tolist() == [MIN_CAP_PKTS, 17]


def test_split_names() -> None:
    assert split_names("none, rule:1.5") == ["none", "rule:1.5"]
    with pytest.raises(ConfigError, match="part 2 is empty"):
        split_names("none,,rule")
    with pytest.raises(ConfigError, match="appears twice"):
        split_names("none,none")
    with pytest.raises(ConfigError, match=r"two names stand for rule:1\.5; give every agent once"):
        make_agents(split_names("rule,none,rule:1.5"))
    model = ROOT / "checkpoints" / "default"
    with pytest.raises(ConfigError, match=r"two names stand for .*/default, .*/\.\./default too"):
        make_agents([str(model), f"{model}/../default"])


# --- baselines ---


def decide(agent: Any, count: int = 3, rule_pkts: list[float] | None = None) -> list[int]:
    rule = np.array(rule_pkts if rule_pkts is not None else [30] * count, np.float32)
    caps = agent.decide(records(count), np.zeros((count, STATE_SIZE), np.float32), rule)
    assert caps.dtype == np.uint32
    return list(caps.tolist())


def test_baselines() -> None:
    assert decide(NoCap()) == [0, 0, 0]
    assert decide(FixedCap(25)) == [25, 25, 25]


def test_the_rule_is_a_multiple_of_the_product_within_bounds() -> None:
    stats = records(4)
    caps = Rule(1.5).decide(stats, np.zeros((4, STATE_SIZE), np.float32), np.array([0, 1, 30, 1e6], np.float32))
    assert caps.tolist() == [0, 4, 45, 40_000]


def test_the_rule_with_its_usual_gain_is_action_0_of_the_bdp_head() -> None:
    rule = np.linspace(0, 500, 1000, dtype=np.float32)
    expected = caps_from_actions("bdp", np.zeros(1000, np.float32), np.full(1000, 40, np.uint32), rule)
    np.testing.assert_array_equal(decide(Rule(), 1000, rule.tolist()), expected)


def test_random_caps_repeat_after_a_reset_and_stay_within_half_and_twice_the_window() -> None:
    agent = RandomCap(seed=3)
    first, second = decide(agent, 100), decide(agent, 100)
    agent.reset()
    assert decide(agent, 100) == first != second
    assert 20 <= min(first) < 25 < 60 < max(first) <= 80


# --- guard ---


def judged(stats: Any, wanted_pkts: Any) -> tuple[Any, Any]:
    """Returns caps and codes of a guard that sees each flow for the first time, with open gates."""
    wanted_pkts = np.asarray(wanted_pkts, np.uint32)
    caps, verdicts = Guard().judge(stats, wanted_pkts, np.ones(len(stats), np.bool_))
    for name, expected in (("wanted_pkts", wanted_pkts), ("allowed_pkts", caps)):
        np.testing.assert_array_equal(verdicts[name], expected)
    for name in ("target_us", "min_rtt_us"):
        np.testing.assert_array_equal(verdicts[name], stats[name])
    return caps, verdicts["code"]


def test_guard_lets_good_caps_pass() -> None:
    caps, reasons = judged(records(3), [0, 4, 40_000])
    assert caps.tolist() == [0, 4, 40_000]
    assert reasons.tolist() == [Why.AGENT_CHOSE_NONE, 0, 0]


def test_guard_refuses_a_target_below_the_paths_reach() -> None:
    stats = records(2, min_rtt_us=19_500)
    stats["target_us"] = [20_000, 21_450]
    caps, reasons = judged(stats, [30, 30])
    assert caps.tolist() == [0, 30]
    assert reasons.tolist() == [Why.TOO_TIGHT, 0]
    assert target_too_tight(20_000, 19_500) == (
        "target 20.0 ms is below 1.1 x the path's minimum RTT (19.5 ms): flow stays uncapped; "
        "raise the target above 21.5 ms (+2.0ms)"
    )


@pytest.mark.parametrize(
    ("fields", "cap", "message"),
    [
        ({"min_rtt_us": 0}, 30, "no RTT measured"),
        ({"min_rtt_us": 0xFFFF_FFFF}, 30, "no RTT measured"),
        ({"target_us": 0}, 30, "no target delay is set"),
        ({}, 3, "a cap of 3 packets is outside [4, 40000]"),
        ({}, 40_001, "outside"),
        ({}, INVALID_CAP_PKTS, "not a finite number"),
    ],
)
def test_guard_says_why(fields: dict[str, int], cap: int, message: str) -> None:
    caps, (code,) = judged(records(1, **fields), [cap])
    assert caps.tolist() == [0]
    verdict = np.zeros(1, VERDICT_DTYPE)
    verdict["code"], verdict["wanted_pkts"] = code, cap
    assert message in text(verdict[0])


def test_a_model_brings_the_period_it_was_trained_with(model: Path) -> None:
    assert Policy.load(model).view.period == PeriodConfig(20_000_000, packet_timed=False)


def test_moving_a_model_changes_nothing(tmp_path: Path, model: Path) -> None:
    before = load_artifact(model).manifest_sha256
    shutil.copytree(model, tmp_path / "elsewhere")
    assert load_artifact(tmp_path / "elsewhere").manifest_sha256 == before

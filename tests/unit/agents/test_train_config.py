"""The training configuration: what it refuses, and how it says so."""

from pathlib import Path
from typing import get_args

import pytest

from helpers.places import ROOT
from reinet.agents.learn.config import RewardSection, TrainConfig
from reinet.agents.learn.rllib.config import load_config
from reinet.core import DELAY_WEIGHT, REWARDS
from reinet.core.errors import ConfigError

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", [p for p in CONFIGS if p.stem not in ("daemon", "trainer")], ids=lambda p: p.stem)
def test_the_repositorys_configurations_are_valid(path: Path) -> None:
    assert load_config(path).name == path.stem


def test_own_traces_differ_from_the_default_in_links_and_traces_alone() -> None:
    """What the two models differ in is then due to the traces: that is what their comparison is for."""
    default, own = (
        TrainConfig.load(ROOT / "configs" / f"{name}.toml").model_dump(exclude={"name", "traces"})
        for name in ("default", "own-traces")
    )
    assert own == default


def test_every_reward_of_the_environments_can_be_trained_on() -> None:
    assert set(get_args(RewardSection.model_fields["kind"].annotation)) == set(REWARDS)
    assert RewardSection().delay_weight == DELAY_WEIGHT


def test_deepcc_is_the_papers() -> None:
    config = TrainConfig.load(next(p for p in CONFIGS if p.stem == "deepcc"))
    assert config.head == "cwnd"
    assert config.reward.kind == "deepcc"
    assert not config.period.packet_timed
    assert config.period.min_ms == 20
    ddpg = config.ddpg
    assert (ddpg.hidden, ddpg.batch, ddpg.replay, ddpg.noise) == ([1000, 1000], 512, 160_000, 0.1)
    assert (ddpg.actor_lr, ddpg.critic_lr, ddpg.gamma, ddpg.tau, ddpg.critic_l2) == (1e-4, 1e-3, 0.995, 0.001, 1e-2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead = 2", r"unknown key 'sead'; nearest is 'seed'"),
        ("[ddpg]\ngama = 0.9", r"unknown key 'gama' in \[ddpg\]; nearest is 'gamma'"),
        ("[dppg]\ngamma = 0.9", r"unknown key 'dppg'; nearest is 'ddpg'"),
        ("[ddpg]\ngamma = 1.0", r"ddpg\.gamma: Input should be less than 1"),
        ("[ddpg]\ngamma = nan", r"ddpg\.gamma"),
        ("[ddpg]\nhidden = []", r"ddpg\.hidden"),
        ("[ddpg]\nhidden = [64, 0]", r"ddpg\.hidden\.1: Input should be greater than or equal to 1"),
        ("[ddpg]\nhidden = [2000, 1950]", r"ddpg\.hidden = \[2000, 1950\] makes 4105901 parameters; .* 4000000"),
        ("[links]\nmrtt_ms = [80, 4]", r"links.*mrtt_ms = \[80.0, 4.0\] is not a range"),
        ("[links]\nmrtt_ms = [4, 5000]", r"above 1000 ms"),
        ("head = 'rate'", r"head: Input should be 'cwnd', 'bdp' or 'wide'"),
        ("feature_set = 'other'", r"feature_set.*no feature set 'other'"),
        ("[traces]\npresets = ['lte-flying']", r"traces\.presets.*'lte-flying'"),
        ("[traces]\npresets = []", r"traces.*nothing to learn from"),
        ("[traces]\nsets = 3", r"traces\.sets"),
        ("[traces]\nsets = ['a', 3]", r"traces\.sets\.1"),
        ("[traces]\nsets = [{path = 'a', wait = 2}]", r"unknown key 'wait'"),
        ("[traces]\nsets = [{path = 'a', weight = 0}]", r"traces\.sets\.0\.weight: Input should be greater than 0"),
        ("[traces]\nsets = [{path = 'a', role = 'judge'}]", r"traces\.sets\.0\.role"),
        ("[traces]\nselect_share = 1.0", r"traces\.select_share: Input should be less than 1"),
        ("[links]\nloss = [0, 0.9]", r"loss = \[0.0, 0.9\] is not a range within 0 to 0.5"),
        ("[links]\ndecision_ms = [3, 1]", r"decision_ms = \[3.0, 1.0\] is not a range"),
        ("[links]\nrate_scale = [0, 1]", r"rate_scale"),
        ("[links]\ncodel_share = 2", r"links\.codel_share"),
        ("[links]\ncongestion_controls = ['cubik']", r"no congestion control 'cubik'; did you mean 'cubic'"),
        ("[links]\ncongestion_controls = []", r"links\.congestion_controls"),
        ("feature_set = 'timescales-24x1'\n[ddpg]\ngru = 8", r"ddpg\.gru reads a history, and timescales-24x1 has one"),
        ("[ddpg]\ngru = 8\n[hindsight]\nteachers = 2", r"hindsight\.teachers have no GRU"),
        ("[hindsight]\nteachers = 2\nweight = 1.0", r"hindsight: .*teachers = 2 does nothing without iterations"),
        ("[ddpg]\ngru = 256\nhidden = [2000, 1800]", r"makes \d+ parameters; an actor has at most 4000000"),
        ("[curriculum]\ncandidates = 1", r"curriculum\.candidates: Input should be greater than or equal to 2"),
        ("[curriculum]\nshare = 1.1", r"curriculum\.share: Input should be less than or equal to 1"),
        ("[ddpg]\nnormaliser_iterations = 0", r"normaliser_iterations = 0 gives deepcc-5x20 no statistics"),
        ("[ddpg]\ngamma = 0", r"ddpg\.gamma: Input should be greater than 0"),
        ("[run]\niterations = 20\n[evolution]\ngenerations = 16", r"leave none of run\.iterations = 20"),
        ("[run]\niterations = 4", r"normaliser_iterations = 4 leave none of run\.iterations = 4 to learn in"),
        ("[rollout]\nperiods = 1000\n[ddpg]\nreplay = 1000", r"replay = 1000 has no room for the 1020 frames"),
        ("seed = ", "not TOML"),
        ("name = '../../etc'", "name"),
    ],
)
def test_faults_are_named_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        TrainConfig.load(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        TrainConfig.load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match="not TOML"):
        TrainConfig.load(tmp_path / "binary.toml")

"""The training configuration: one TOML file, every key optional, every default with its reason.

An unknown key or a wrong value is a ConfigError that names the file, the key and the nearest key that exists.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reinet.agents.decide.protocol import View
from reinet.agents.evaluation.no_harm import HarmGate
from reinet.agents.model.artifact import MAX_PARAMETERS
from reinet.agents.model.gru import parameters_of
from reinet.agents.model.period import PeriodTable
from reinet.core import MOST_CALM_RTTS, toml_file
from reinet.core.errors import ConfigError
from reinet.core.features import DEFAULT_FEATURE_SET, FEATURE_SETS, feature_set_named
from reinet.core.normaliser import Normaliser
from reinet.core.rewards import DELAY_WEIGHT
from reinet.envs.link.conditions import Conditions
from reinet.envs.link.laws import LogUniform, Uniform, law_of
from reinet.envs.link.spec import check_choice
from reinet.envs.sim.options import SIM_CONGESTION_CONTROLS
from reinet.envs.trace.model import PRESETS, RANDOM
from reinet.envs.trace.set_file import Role

Range = tuple[float, float]
MOST_COUNT = 10_000_000
"""No run has more iterations, generations or updates: at ten iterations a second it would take eleven days, and
messages of the training service hold iterations in 32 bits."""


def _as_value_error(check: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a check of another module gives; what it refuses becomes what pydantic names the key of."""
    try:
        return check(*arguments)
    except ConfigError as error:
        raise ValueError(str(error)) from None


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TraceSet(_Section):
    """Recordings of the user's own, as ``[traces] sets`` names them; a path alone says the same with the defaults."""

    path: str = Field(min_length=1)
    """A trace file, a folder of them or a set file. It is relative to the folder where the command is started, and
    $NAME in it stands for the environment's variable."""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """How often flows run over this set, next to the weights of the others and of the generated traces; the traces of
    one set are as likely as each other."""
    role: Role | None = None
    """What all of the set is for: to learn from, to choose among checkpoints by, or neither of them. None = what a set
    file's name says where that is one of the three, as those of ``reinet traces split`` are; else the contents are
    divided by ``select_share``."""


class TraceSection(_Section):
    """Traces to learn from, and others to choose among checkpoints: generated ones, and the user's recordings."""

    presets: list[str] = ["lte-driving", "random", "lte-walking", "random", "lte-stationary", "random"]
    """Kinds of link, taken in turn; see ``reinet traces generate --help``. random varies around all of them: two fifths
    are slow 3G links, whose serialisation alone often exceeds a target, and the LTE presets keep those a minority.
    None are needed where there are sets."""
    presets_weight: float = Field(default=1.0, gt=0, le=1e6)
    """How often flows run over generated traces, next to the weights of the sets: as often as over one set."""
    sets: list[TraceSet] = []
    """Recordings beside the generated traces; the default learns from generated ones alone, which anybody has."""
    select_share: float = Field(default=0.25, ge=0, lt=1)
    """The share of the recordings, by content, that is held back to choose among checkpoints: three of a dozen, fewer
    than are learned from. Names and order do not matter, and copies stay together."""
    forbid: list[str] = []
    """Trace files, folders and set files none of whose contents may be learned from or selected by: what the model is
    going to be judged on."""
    train_count: int = Field(default=64, ge=1, le=4096)
    """So many that no single trace can be learnt by heart: a flow sees a random stretch of one of them."""
    select_count: int = Field(default=12, ge=1, le=1024)
    """So many generated traces evaluate which checkpoint is best; the spread of their mean is then about 1 %."""
    seconds: float = Field(default=60.0, ge=5, le=3600)
    """The length of each generated trace; the paper evaluates over longer ones, but variety teaches more."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Training traces have the seeds seed, seed + 1, ...; those for selection follow after a gap."""

    _a_path_alone = field_validator("sets", mode="before")(toml_file.paths_as_tables)

    @model_validator(mode="after")
    def _has_a_source(self) -> "TraceSection":
        if not self.presets and not self.sets:
            raise ValueError("there is nothing to learn from; name presets, or sets of recordings")
        return self

    @field_validator("presets")
    @classmethod
    def _known(cls, presets: list[str]) -> list[str]:
        for preset in presets:
            if preset not in (*PRESETS, RANDOM):
                raise ValueError(f"there is no preset {preset!r}; choose among {', '.join([*PRESETS, RANDOM])}")
        return presets


class LinkSection(_Section):
    """Links around the traces, drawn anew for every flow: a model is used on paths nobody has listed.

    ``links.domain_of`` makes a ``LinkDomain`` of it.
    """

    mrtt_ms: Range = (4.0, 80.0)
    """The paper sweeps 4-30 ms; mobile paths to far servers reach 80. It is drawn log-uniformly."""
    buffer_bytes: Range = (30_000, 1_000_000)
    """The range is the paper's sweep. It is drawn log-uniformly."""
    queueing_target_ms: Range = (15.0, 80.0)
    """The target minus the base RTT: the paper's 25-100 ms around its base of 20 ms, never below the guard's margin."""
    jitter_us: Range = (500.0, 4000.0)
    """Hosts make ACKs so late: a millisecond when quiet, several when busy. A policy that knows no jitter sets windows
    that just fill a simulated path and starves on a real one, whose rounds take longer than its minimum RTT. It is
    drawn log-uniformly."""
    pkts_per_ack: Range = (2.0, 2.5)
    """Linux acknowledges every second packet, and fewer where the receiver is woken late; the number of RTT samples, an
    input, follows it."""
    reference_share: float = Field(default=0.25, ge=0, le=1)
    """The share of flows on the paper's own link (20 ms, 150 KB, target 50 ms), where most comparisons are made."""

    rate_scale: Range = (1.0, 1.0)
    """The factor on a trace's rate, whose gaps stay: [0.5, 2] makes a few recordings many. Drawn log-uniformly. As it
    stands, a recording's rate and outages belong together."""
    loss: Range = (0.0, 0.0)
    """The share of data packets lost at random, before the queue; drawn uniformly. Radio links repair what they lose,
    so that hardly any path has more than 0.01; the default is the paper's."""
    codel_share: float = Field(default=0.0, ge=0, le=1)
    """The share of flows whose queue is CoDel's instead of droptail; the default is the paper's training."""
    congestion_controls: list[str] = Field(default_factory=lambda: ["cubic"], min_length=1)
    """Each flow has one of them, all equally likely; the default is what models were trained with so far. A model says
    which it was trained with, and the daemon caps no others."""
    cross_share: float = Field(default=0.0, ge=0, le=1)
    """The share of flows beside which a Cubic flow comes and goes in the same queue; the default is the paper's
    training. The reward ``regret`` then counts what that flow uses as unused."""
    cross_start_ms: Range = (0.0, 8000.0)
    """When that flow starts: while the first one is under way, which lasts some 10 s. Drawn uniformly."""
    cross_ms: Range = (1000.0, 10_000.0)
    """How long it lasts: from a page to all of the rest. Drawn log-uniformly."""
    app_limited_share: float = Field(default=0.0, ge=0, le=1)
    """The share of flows whose application writes more slowly than the link is on average; by default none, as in the
    paper."""
    app_rate: Range = (0.1, 0.9)
    """The application's rate as a share of the trace's mean: from a video well below it to one that is nearly too fast,
    and is for seconds at a time. Drawn log-uniformly."""
    short_share: float = Field(default=0.0, ge=0, le=1)
    """The share of flows that end; by default none, as in the paper. Once such a flow is through, its place in the
    rollout stays empty until the iteration's end."""
    short_bytes: Range = (10_000, 10_000_000)
    """What such a flow sends: from what the first window holds to seconds of an LTE link. Drawn log-uniformly."""
    decision_ms: Range = (0.0, 0.0)
    """How long deciding takes, from a record to its cap in force; drawn uniformly. The default is what models were
    trained with so far; [0, 3] is for decisions 5 ms apart, of which a late one is a good part."""

    @field_validator("congestion_controls")
    @classmethod
    def _simulated(cls, names: list[str]) -> list[str]:
        for name in names:
            _as_value_error(check_choice, "cc", "there is no congestion control", name, SIM_CONGESTION_CONTROLS)
        return names

    def conditions(self) -> Conditions:
        """Returns what flows meet beside their path."""
        return Conditions(
            rate_scale=law_of(LogUniform, *self.rate_scale),
            codel_share=self.codel_share,
            cross_share=self.cross_share,
            cross_start_ms=law_of(Uniform, *self.cross_start_ms),
            cross_ms=law_of(LogUniform, *self.cross_ms),
            app_limited_share=self.app_limited_share,
            app_rate=law_of(LogUniform, *self.app_rate),
            short_share=self.short_share,
            short_bytes=law_of(LogUniform, *self.short_bytes),
        )

    @model_validator(mode="after")
    def _ordered(self) -> "LinkSection":
        for name, most in (("loss", 0.5), ("decision_ms", 1000.0)):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= most:
                raise ValueError(f"{name} = [{low}, {high}] is not a range within 0 to {most:g}")
        _as_value_error(self.conditions)
        for name in ("mrtt_ms", "buffer_bytes", "queueing_target_ms", "jitter_us", "pkts_per_ack"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} = [{low}, {high}] is not a range above 0")
        if self.mrtt_ms[1] > 1000:
            raise ValueError("mrtt_ms reaches above 1000 ms; no path the simulator models is that long")
        return self


class RolloutSection(_Section):
    """How experience is gathered in one iteration: fresh flows, a fixed number of periods each."""

    workers: int = Field(default=2, ge=0, le=256)
    """How many Ray actors gather; 2 suit a machine of two cores. 0 gathers inside the learner's process."""
    links: int = Field(default=16, ge=1, le=4096)
    """Each worker steps so many flows; with two workers and the periods below an iteration has 8192 records."""
    periods: int = Field(default=256, ge=8, le=100_000)
    """Each flow lasts so many periods, about 10 s of round trips. Where decisions come more often ask for more: no cap
    acts in a flow's first second, so it teaches nothing."""


class RewardSection(_Section):
    """What is learned for; the formulas are in ``core/states/reward.hpp``."""

    kind: Literal["regret", "regret-linear", "deepcc"] = "regret"
    """regret weighs slow and fast links alike. deepcc is the paper's; its scale follows the link's rate, so slow links
    hardly count when many links are learned at once."""
    delay_weight: float = Field(default=DELAY_WEIGHT, ge=0, le=10)
    """For regret alone: how much throughput, as a share, an empty queue is worth against one that fills the target."""


class DdpgSection(_Section):
    """The algorithm; symbols as in the paper."""

    hidden: list[Annotated[int, Field(ge=1)]] = Field(default_factory=lambda: [128, 128], min_length=1, max_length=4)
    """The paper's 1000-1000 take hours on two cores and give nothing measurable on these links."""
    gru: int = Field(default=0, ge=0, le=256)
    """So many units of a GRU (Cho et al. 2014) read the history record by record, oldest first, and stand before the
    actor's layers beside the newest record; 0 = the layers read the whole history at once, as in the paper."""
    batch_norm: bool = True
    """BatchNorm stands before the non-linearity of each hidden layer of the actor, as in the paper."""
    actor_lr: float = Field(default=1e-4, gt=0, le=1)
    """Adam's step for the actor; the default is the paper's."""
    critic_lr: float = Field(default=1e-3, gt=0, le=1)
    """Adam's step for the critic; the default is the paper's."""
    critic_l2: float = Field(default=1e-2, ge=0, le=1)
    """The decay of the critic's weights, not of its biases; the default is the paper's."""
    gamma: float = Field(default=0.995, gt=0, lt=1)
    """The discount per period; the default is the paper's."""
    horizon_ms: float | None = Field(default=None, gt=0, le=60_000)
    """What lies so far ahead counts 1 / e; it takes the place of ``gamma``. A discount per decision weighs a slow path,
    whose decisions last longer, otherwise than a fast one."""
    steps: int = Field(default=1, ge=1, le=256)
    """A target sums the rewards of so many decisions before it asks the critic. An action shows in the RTT samples a
    round trip later, so with several decisions in each the next record says nothing of it. The rewards are those of
    the policy that acted: keep the replay short."""
    critics: Literal[1, 2] = 1
    """Two learn apart and the lower one is believed (TD3, Fujimoto et al. 2018)."""
    smoothing: float = Field(default=0.0, ge=0, le=1)
    """The standard deviation of the noise on the target actor's actions (TD3)."""
    actor_delay: int = Field(default=1, ge=1, le=64)
    """The actor takes a step after so many of the critic's (TD3)."""
    privileged: bool = False
    """The critic also sees what only the simulator knows: the queue, and what the link will carry. It is gone when the
    actor is deployed; until then it tells the action's merit from the link's luck."""
    saturation: float = Field(default=0.0, ge=0, le=1)
    """The actor's loss has so much of the square of its output before the tanh: where a critic that has not learned yet
    drives every action to the limit, the tanh has no gradient that could bring it back."""
    averaging: float = Field(default=0.0, ge=0, lt=1)
    """The actor that is evaluated and exported is an average over updates with this decay; 0 = the latest."""
    lr_end: float = Field(default=1.0, ge=0, le=1)
    """Learning rates fall linearly to this share of themselves at the run's last iteration."""
    tau: float = Field(default=0.001, gt=0, le=1)
    """The share of the online network that moves into the target network per update; the default is the paper's."""
    batch: int = Field(default=512, ge=2, le=65_536)
    """The transitions of one update; the default is the paper's."""
    replay: int = Field(default=160_000, ge=1_000, le=50_000_000)
    """The replay keeps so many records; the default is the paper's."""
    noise: float = Field(default=0.1, ge=0, le=2)
    """The standard deviation of the uncorrelated Gaussian noise on the action; the default is the paper's."""
    noise_ms: float = Field(default=0.0, ge=0, le=10_000)
    """The noise of decisions so far apart is correlated by 1 / e, where all count as ``period.min_ms`` apart; 0 = not
    at all. With several decisions in a round trip one of them alone changes nothing that could be learned from (Tallec
    et al. 2019); what lasts does."""
    flow_noise: float = Field(default=0.0, ge=0, le=2)
    """The standard deviation of a second noise, drawn once for each flow. The paper has none; with one decision per
    round trip a single period's noise hardly moves a queue, and a lasting offset shows where another gain leads."""
    cold_start_iterations: int = Field(default=4, ge=0, le=MOST_COUNT)
    """So many iterations walk the multiplier from x2 to x0.5 instead of asking the actor (the paper: 16 000 steps)."""
    normaliser_iterations: int = Field(default=4, ge=0, le=MOST_COUNT)
    """So many iterations update the normaliser; then it is frozen, so that the replay keeps one meaning. The walk of
    the cold start has visited the whole range of delays by then. The paper's code never freezes it in training."""


class HindsightSection(_Section):
    """A supervised start: the actor first learns what hindsight would have done; see ``hindsight.py``."""

    iterations: int = Field(default=0, ge=0, le=MOST_COUNT)
    """So many iterations come first, in which the actor follows hindsight and the critic watches; 0 = none."""
    quantile: float = Field(default=0.85, gt=0, lt=1)
    """The share of moments in which the window is to suffice for all that the link will carry: more of it is throughput
    for delay."""
    room_share: float = Field(default=0.12, ge=0, le=10)
    """The window is to last for the minimum RTT and this share of the room, what the target allows for queueing, in
    whole milliseconds."""
    most_room_ms: float = Field(default=1000.0, gt=0, le=1000)
    """But no longer than this beyond the minimum RTT: a longer path, with the more room that a multiple of its RTT
    leaves, has bursts no longer than a short one's. The default limits nothing."""
    room_power: float = Field(default=0.0, ge=0, le=2)
    """Where the target leaves less room, a packet too many is dearer by this power of it (``hindsight.dearness``)."""
    path_power: float = Field(default=0.0, ge=0, le=2)
    """On a path longer than 20 ms it is dearer by this power of the length; 0 = it costs the same on every path."""
    waits: list[float] = []
    """Further such shares, rising. A packet too many waits for hours before an outage and for a moment elsewhere: past
    each of them its price rises, so that the window shrinks where long waits are likely. Beyond the last it rises no
    more: outages that nobody can foresee are not to rule everything."""
    wait_price: float = Field(default=0.0, ge=0, le=100)
    """For each allowed queueing delay that a packet too many waits, its price rises by so much of itself."""
    teachers: int = Field(default=0, ge=0, le=64)
    """So many networks follow hindsight, and the actor their mean (``ddpg.Teachers``); 0 = it follows it itself."""
    lr: float = Field(default=1e-3, gt=0, le=1)
    """The actor's learning rate meanwhile, and its teachers'; it falls to a twentieth."""
    weight: float = Field(default=0.0, ge=0, le=100)
    """Afterwards the actor's loss keeps so much of hindsight's (TD3+BC, Fujimoto and Gu 2021)."""

    @model_validator(mode="after")
    def _makes_sense(self) -> "HindsightSection":
        if self.teachers and self.weight and not self.iterations:  # without weight too, all of the section is off
            raise ValueError(f"teachers = {self.teachers} does nothing without iterations: they only learn in those")
        if list(self.shares) != sorted(set(self.shares)):
            raise ValueError(f"waits is {self.waits}; they must rise, from above room_share, {self.room_share:g}")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares (K,) of the allowed queueing delay for which hindsight gives a window each."""
        return (self.room_share, *self.waits)

    @property
    def taught_size(self) -> int:
        """How many numbers hindsight says of a record: an action for each share, and how dear a packet too many is."""
        return len(self.shares) + 1


class EvolutionSection(_Section):
    """A polish at the end, on what flows are judged by; see ``evolution.py``."""

    generations: int = Field(default=0, ge=0, le=MOST_COUNT)
    """So many of the run's iterations, its last, are generations; 0 = none."""
    members: int = Field(default=16, ge=4, le=1024)
    """A generation has so many; 4 + 3 log(65) is CMA-ES's own choice for a layer of 64 units."""
    links: int = Field(default=8, ge=1, le=4096)
    """Each worker runs every member over so many links."""
    seconds: float = Field(default=10.0, ge=2, le=600)
    """For so long: outages last seconds."""
    trade: float = Field(default=8.0, gt=0, le=1000)
    """A share of throughput is worth so many of the logarithm of delay: where the rule keeps some 97 % of plain
    throughput, another percent costs it some 8 % of delay."""
    spread: float = Field(default=0.1, gt=0, le=10)
    """The deviation of the first members' outputs before the tanh."""


class CurriculumSection(_Section):
    """Links where the policy stands worst beside the hand rule (Genet, Xia et al. 2022), sought anew each time."""

    share: float = Field(default=0.0, ge=0, le=1)
    """The share of an iteration's flows on such links; 0 = every link is taken as it is drawn. A cold start seeks none,
    for no policy acts in it."""
    candidates: int = Field(default=4, ge=2, le=64)
    """For each such flow so many links are drawn and tried, and the worst ones of all are kept."""
    seconds: float = Field(default=5.0, ge=2, le=600)
    """For so long the policy and the rule are tried on each; what a link costs is evolution's (``evolution.trade``)."""


class RunSection(_Section):
    """How long a run lasts, and what it keeps."""

    iterations: int = Field(default=300, ge=1, le=MOST_COUNT)
    """A run gathers, then updates, this many times."""
    updates: int = Field(default=128, ge=1, le=MOST_COUNT)
    """Each iteration takes so many gradient steps."""
    evaluate_every: int = Field(default=20, ge=1)
    """So many iterations lie between evaluations on the selection traces."""
    evaluate_s: float = Field(default=30.0, ge=5, le=3600)
    """The length of each evaluation flow."""
    evaluate_seeds: int = Field(default=2, ge=1, le=100)
    """Each selection link has so many: over jitter a score has a deviation of 0.01; each takes 20 s of one core."""
    checkpoint_every: int = Field(default=20, ge=1)
    """So many iterations lie between checkpoints."""
    keep: int = Field(default=3, ge=1)
    """So many checkpoints are kept beside the best one."""


class TrainConfig(_Section):
    """A whole training run."""

    name: str = Field(default="model", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """It names the run's folder and the model."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """It seeds weights, noise, links and batches."""
    feature_set: str = DEFAULT_FEATURE_SET
    """The default is the paper's state; ``SimLinkEnv``'s documentation lists the sets."""

    @field_validator("feature_set")
    @classmethod
    def _exists(cls, name: str) -> str:
        return str(_as_value_error(feature_set_named, name).name)

    head: Literal["cwnd", "bdp", "wide"] = "bdp"
    """With bdp action 0 is the hand rule with its usual gain, so that a network is sane before it has learned; cwnd is
    the paper's head."""
    calm_rtts: float = Field(default=0.0, ge=0, le=MOST_CALM_RTTS)
    """Caps go 1 - 1 / e of the way to what the network wants in so many minimum RTTs; 0 = at once. A low cap costs
    more than the high one after it mends, and the more so the longer the path (``core/states/calm.hpp``)."""
    room_beyond_ms: float | None = Field(default=None, gt=0)
    """The trained network is told of as much room as a path is longer than this; None = of what the target leaves."""
    period: PeriodTable = PeriodTable()
    traces: TraceSection = TraceSection()
    links: LinkSection = LinkSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection = RewardSection()
    ddpg: DdpgSection = DdpgSection()
    hindsight: HindsightSection = HindsightSection()
    evolution: EvolutionSection = EvolutionSection()
    curriculum: CurriculumSection = CurriculumSection()
    run: RunSection = RunSection()
    harm: HarmGate = HarmGate()

    @model_validator(mode="after")
    def _can_learn(self) -> "TrainConfig":
        """Refuses what would fail an hour after the start, or teach nothing without a word."""
        ddpg, features, generations = self.ddpg, FEATURE_SETS[self.feature_set], self.evolution.generations
        if ddpg.gru and features.history == 1:
            raise ValueError(f"ddpg.gru reads a history, and {features.name} has one record; try timescales-24x20")
        if ddpg.gru and self.hindsight.teachers:
            raise ValueError("hindsight.teachers have no GRU, so an actor with ddpg.gru would learn no more than they")
        if features.inputs and not ddpg.normaliser_iterations:
            raise ValueError(f"ddpg.normaliser_iterations = 0 gives {features.name} no statistics, so it shows only 0")
        if generations + ddpg.normaliser_iterations >= self.run.iterations:
            raise ValueError(
                f"evolution.generations = {generations} and ddpg.normaliser_iterations = {ddpg.normaliser_iterations} "
                f"leave none of run.iterations = {self.run.iterations} to learn in; give more iterations"
            )
        if (frames := features.history + self.rollout.periods) > ddpg.replay:
            raise ValueError(f"ddpg.replay = {ddpg.replay} has no room for the {frames} frames of rollout.periods")
        return self

    @model_validator(mode="after")
    def _makes_a_model(self) -> "TrainConfig":
        features, hidden = FEATURE_SETS[self.feature_set], self.ddpg.hidden
        made = parameters_of(features.history, len(features.features), self.ddpg.gru, hidden)
        if made > MAX_PARAMETERS:
            raise ValueError(f"ddpg.hidden = {hidden} makes {made} parameters; an actor has at most {MAX_PARAMETERS}")
        return self

    def view(self, normaliser: Normaliser) -> View:
        """Returns how agents see flows in this training, with these statistics."""
        return View(self.feature_set, normaliser, self.period.rule(), self.room_beyond_ms)

    @classmethod
    def load(cls, path: Path | str) -> "TrainConfig":
        """Returns the configuration in a TOML file; raises ConfigError."""
        return toml_file.load(Path(path), cls, "give a training configuration, such as configs/default.toml")

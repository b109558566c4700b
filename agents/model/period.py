"""The period as files say it: ``[period]`` of a training configuration and ``"period"`` of a manifest are one model."""

from pydantic import BaseModel, ConfigDict, Field

from reinet.core.period import PeriodConfig

_NS_PER_MS = 1_000_000


class PeriodTable(BaseModel):
    """How often a flow reports; ``core/period.h`` says what the two mean. ``rule`` is what the code works with."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    min_ms: float = Field(default=PeriodConfig().min_period_ns / _NS_PER_MS, ge=1, le=1000)
    """The default is that of ``PeriodConfig``, with its reason; the paper's code reports every 20 ms."""
    packet_timed: bool = True
    """A period lasts at least a round trip, so that the next record shows a decision's effect; the paper: false."""

    def rule(self) -> PeriodConfig:
        """Returns the period that these words mean."""
        return PeriodConfig(round(self.min_ms * _NS_PER_MS), self.packet_timed)

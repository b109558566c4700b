"""A flow of the real kernel over an emulated link, and the shim through which somebody measures and caps it."""

from __future__ import annotations

from dataclasses import replace

from reinet.core import ConfigError, PeriodConfig, ShimError
from reinet.core.closing import Closing
from reinet.envs.flow_shim import FlowShim
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import new_cgroup
from reinet.kshim.kernel import KernelShim
from reinet.kshim.probe import wrapper_names


class CappedLink(Closing):
    """Link, cgroup and shim of one flow; who decides its caps drives ``shim``: an environment or a control loop.

    ``start`` begins a flow and ``stop`` ends it, any number of times. Everything ends with ``close``, or with this
    process, however that ends. A congestion control that the shim cannot wrap here runs unobserved: without records and
    caps. Raises LinkError or ShimError where the host lacks something.
    """

    def __init__(self, spec: LinkSpec, *, period: PeriodConfig | None = None) -> None:
        self._kernel: KernelShim | None = None
        self._link = MahimahiLink(spec, cgroup=new_cgroup() if spec.cc in wrapper_names() else None)
        try:
            if self._link.cgroup is not None:
                self._kernel = KernelShim([self._link.cgroup], target_us=spec.target_us, period=period)
        except BaseException:
            self._link.close()
            raise
        self.shim = FlowShim(self._kernel, self._link.check)
        """Gives the flow's records and takes its caps."""

    @property
    def spec(self) -> LinkSpec:
        """Returns the path that the present or latest flow runs over."""
        return self._link.spec

    @property
    def zero_ns(self) -> int:
        """Returns CLOCK_MONOTONIC at the trace's start, in ns."""
        return self._link.zero_ns

    @property
    def started_ns(self) -> int:
        """Returns CLOCK_MONOTONIC when the flow began to send, in ns."""
        return self._link.started_ns

    def start(self, spec: LinkSpec | None = None) -> None:
        """Begins a new flow without a cap, over another path than before if given; the one before ends.

        Raises ConfigError for a path with another congestion control or target: the shim was loaded for these.
        """
        if spec is not None and (spec.cc, spec.target_us) != (self.spec.cc, self.spec.target_us):
            raise ConfigError("cc, target_us: a capped link keeps its own; make another one for another")
        self.shim.end()
        (flow,) = self._link.start(spec)
        if self._kernel is not None and flow.cc != (wrapper := self._kernel.wrappers[self.spec.cc]):
            raise ShimError(
                f"flow {flow.cookie} runs {flow.cc}, not {wrapper}: the shim did not choose it although "
                "it is in the cgroup; is another program attached that changes congestion controls?"
            )
        self.shim.follow(flow.cookie)

    def stop(self) -> LinkRun:
        """Ends the flow; returns what the link recorded, invalid also where a cap lapsed that should have held."""
        lapse = self.shim.end()
        run = self._link.stop()
        return replace(run, invalid_reason="; ".join(filter(None, (run.invalid_reason, lapse))) or None)

    def close(self) -> None:
        """Ends flow and link and unloads the shim, bounded in time; further calls do nothing."""
        try:
            self._link.close()  # first, so that no socket runs on the shim any more when it is unloaded
        finally:
            self.shim.close()

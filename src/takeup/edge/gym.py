"""A gymnasium environment for reinforcement learning: accept one device per step, or stop.

How it works. In each step a device is accepted, with the smallest group that saves energy and a CPU slot, or the
episode ends and the remaining subcarriers are assigned. The reward is what that adds to the worth of the plan, as a
share of a bound on any allocation: rewards add up to one minus the gap. `reference` is the answer of our solver for the
same instance.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.extras import explain
from takeup.edge.model import Answer, Instance
from takeup.edge.policies import find_policy
from takeup.edge.solvers.partial_plan import (
    PartialPlan,
    SiteQuantities,
    accept,
    assign_free_subcarriers,
    consider,
    refusal_reasons,
)
from takeup.edge.traces.generators import generate
from takeup.errors import BadInput

try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError as error:
    raise explain(error, "the environment of edge") or error from error


Observation = dict[str, npt.NDArray[Any]]
Source = Callable[[np.random.Generator], Instance]

EIGHT_DEVICES = partial(generate, "paper", num_devices=8)
SNR_DB = (-100.0, 200.0)  # of the whole power of a device on one subcarrier


def reference(instance: Instance) -> Answer:
    """The answer of our solver, as a baseline."""
    return find_policy("exact").allocate(instance)


class OffloadingEnv(gymnasium.Env[Observation, np.int64]):
    """Accept devices of a random instance; action `num_devices` stops.

    `source` makes an instance from a generator of random numbers, always of one shape; a new one is drawn at every
    reset, unless its options hold an `instance`. Accepting a device that cannot join changes nothing; `info` lists the
    valid actions. An observation has:

    devices     worth and bits as shares of the largest; run time, deadline and release as shares of the last deadline
    snr_db      signal-to-noise ratios of devices and subcarriers
    free        unassigned subcarriers
    accepted    devices that offload
    start       when the CPU would begin with each device at the latest, as a share of the last deadline; below zero if
                it has no time left
    """

    def __init__(self, source: Source = EIGHT_DEVICES) -> None:
        self._source = source
        sample = source(np.random.default_rng(0))
        if sample.num_devices == 0:
            raise BadInput("the source makes instances without devices, so there is nothing to choose; give some")
        self._shape = num_devices, num_subcarriers = sample.gains.shape
        self.action_space = spaces.Discrete(num_devices + 1)
        self.observation_space: spaces.Space[Observation] = spaces.Dict(  # type: ignore[assignment]  # of any arrays
            {
                "devices": spaces.Box(0.0, 1.0, (num_devices, 5), np.float32),
                "snr_db": spaces.Box(*SNR_DB, (num_devices, num_subcarriers), np.float32),
                "free": spaces.MultiBinary(num_subcarriers),
                "accepted": spaces.MultiBinary(num_devices),
                "start": spaces.Box(-1.0, 1.0, (num_devices,), np.float32),
            }
        )
        self._begin(sample)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode with a new instance and no accepted devices."""
        super().reset(seed=seed)
        given = (options or {}).get("instance")
        self._begin(self._source(self.np_random) if given is None else given)
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Accept a device, or stop; the reward is the worth this adds, as a share of the bound."""
        before_j = self._plan.worth_j()
        self._num_steps += 1
        if action < self.instance.num_devices:
            self._accept(int(action))
        is_over = action == self.instance.num_devices or not self._who_can_join().any()
        if is_over:
            assign_free_subcarriers(self._plan)
        reward = (self._plan.worth_j() - before_j) / self.bound_j
        is_cut_short = not is_over and self._num_steps >= 2 * self.instance.num_devices
        return self._observation(), float(reward), is_over, is_cut_short, self._info()

    def answer(self) -> Answer:
        """The current plan as an answer."""
        site = self._plan.site
        return self._plan.answer("episode", refusal_reasons(site, site.promising()))

    def _begin(self, instance: Instance) -> None:
        if instance.gains.shape != self._shape:
            found, expected = (
                "{} devices and {} subcarriers".format(*shape) for shape in (instance.gains.shape, self._shape)
            )
            raise BadInput(
                f"found an instance of {found}, this environment is for {expected}; make another environment"
            )
        self.instance = instance
        self._plan = PartialPlan(SiteQuantities(instance))
        self._num_steps = 0
        bound_j = reference(instance).bound_j
        self.bound_j = bound_j or float(instance.worth_j.sum())  # weak, but a bound as well

    def _accept(self, device: int) -> None:
        newcomers = consider(self._plan, np.setdiff1d([device], self._plan.devices))
        if len(newcomers.devices):
            accept(self._plan, newcomers, 0)

    def _who_can_join(self) -> npt.NDArray[np.int8]:
        can = np.zeros(self.instance.num_devices, np.int8)
        can[consider(self._plan, self._absent()).devices] = 1
        return can

    def _absent(self) -> npt.NDArray[np.int64]:
        return np.setdiff1d(np.arange(self.instance.num_devices), self._plan.devices)

    def _info(self) -> dict[str, Any]:
        """Which actions have an effect; stopping always has."""
        return {"action_mask": np.append(self._who_can_join(), np.int8(1)), "worth_j": self._plan.worth_j()}

    def _observation(self) -> Observation:
        instance, last_s = self.instance, float(self.instance.deadlines_s.max())
        devices = np.stack(
            [
                instance.worth_j / instance.worth_j.max(),
                instance.bits / instance.bits.max(),
                instance.run_s / last_s,
                instance.deadlines_s / last_s,
                instance.releases_s / last_s,
            ],
            axis=1,
        )
        snr_db = 10 * np.log10(instance.gain_to_noise * instance.radio.max_power_w)
        free, accepted = np.zeros(self._shape[1], np.int8), np.zeros(self._shape[0], np.int8)
        free[self._plan.free()] = 1
        accepted[self._plan.devices] = 1
        return {
            "devices": np.clip(devices, 0.0, 1.0).astype(np.float32),
            "snr_db": np.clip(snr_db, *SNR_DB).astype(np.float32),
            "free": free,
            "accepted": accepted,
            "start": np.clip(self._latest_starts() / last_s, -1.0, 1.0).astype(np.float32),
        }

    def _latest_starts(self) -> npt.NDArray[np.float64]:
        """The latest CPU start of each accepted device, and of each other device if it alone joined."""
        starts_s, absent = np.empty(self.instance.num_devices), self._absent()
        starts_s[self._plan.devices] = self._plan.limits()
        starts_s[absent] = self._plan.site.starts_with_one_more(self._plan.devices, absent)[0]
        return starts_s


gymnasium.register("takeup/Offloading-v0", entry_point="takeup.edge.gym:OffloadingEnv")

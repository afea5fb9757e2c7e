"""Records kept while the simulated site runs."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from takeup.core.arrays import Floats
from takeup.edge.model import Instance
from takeup.edge.served import ResourceUsage, SimulatedTask, SimulationResult


class SimulationRecord:
    """One array for each field of the tasks, and how much was in use from when on."""

    def __init__(self, instance: Instance) -> None:
        def unknown() -> Floats:
            return np.full(instance.num_devices, np.nan)

        self.decided_s, self.promised_s = unknown(), unknown()
        self.upload_s, self.start_s, self.end_s = unknown(), unknown(), unknown()
        self.accepted = np.zeros(instance.num_devices, np.bool_)
        self.late = np.zeros(instance.num_devices, np.bool_)
        self.energy_j = np.zeros(instance.num_devices)
        self.num_subcarriers = np.zeros(instance.num_devices, np.int64)
        self.num_plans = self.num_kept = 0
        self._busy: list[tuple[float, int, int]] = [(float(instance.releases_s.min()), 0, 0)]

    def in_use(self, now_s: float, num_subcarriers: int, num_cores: int) -> None:
        """Note how many subcarriers and cores are in use from now on."""
        if self._busy[-1][0] == now_s:
            self._busy.pop()
        self._busy.append((now_s, num_subcarriers, num_cores))

    def result(self, policy: str, instance: Instance) -> SimulationResult:
        """The whole run."""
        columns = {field.name: getattr(self, field.name, None) for field in fields(SimulatedTask)}
        columns |= {
            "device": np.arange(instance.num_devices),
            "arrival_s": instance.releases_s,
            "deadline_s": instance.deadlines_s,
            "local_j": instance.local_j,
        }
        rows = zip(*(column.tolist() for column in columns.values() if column is not None), strict=True)
        times_s, subcarriers, cores = (np.array(column) for column in zip(*self._busy, strict=True))
        until_s = max(float(np.nanmax(self.end_s)), float(times_s[-1]))
        return SimulationResult(
            policy=policy,
            tasks=tuple(SimulatedTask(*row) for row in rows),
            busy=ResourceUsage(times_s, subcarriers, cores, until_s),
            num_subcarriers=instance.num_subcarriers,
            num_cores=instance.num_cores,
            num_plans=self.num_plans,
            num_kept=self.num_kept,
        )

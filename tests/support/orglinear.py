"""The demand estimator of the GFS paper, trained with PyTorch: what benchmarks compare the forecast with."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from takeup.cluster.forecast.baselines import Persistence
from takeup.cluster.forecast.features import WeekCalendar
from takeup.cluster.forecast.forecaster import DemandDistribution, Forecast, Forecaster, Scope
from takeup.core.arrays import Floats
from takeup.core.extras import need
from takeup.errors import BadInput

# OrgLinear as published: one linear layer on trend and cycle of four weeks, with calendar and business attributes -----
#
# Duan et al., "GFS", ASPLOS 2026. Input x: the last L = 672 hours; trend: its mean over 25 hours; cycle = x - trend;
#
#     mu    = W_c [cycle ; time ; business] + W_t [trend ; time ; business]
#     sigma = softplus(W_s [x ; time ; business])
#
# `time` embeds workday, weekday and hour; `business` is self-attention over the embedded attributes of a series.
# Training
# is by Gaussian likelihood where demand is not zero, without scaling of the input. Needs torch, imported when training
# begins; before that the answer is persistence (the paper has no forecast in its first five weeks).

NUM_INPUT_HOURS, NUM_AVERAGED, NUM_VALIDATION_HOURS = 672, 25, 168
EMBEDDING, ATTENTION = 8, 16
LEARNING_RATE, NUM_EPOCHS, BATCH, PATIENCE, EPOCHS_A_HALVING = 4e-5, 10, 32, 3, 3
LEAST_SIGMA = 1e-3
Attributes = Sequence[tuple[int, ...]]  # of each series, such as GPU model, cluster and organisation, counted from 0


class OrgLinear(Forecaster):
    """The paper's demand estimator; the caller decides when to `train`, once a day in the paper."""

    def __init__(
        self, attributes: Attributes, scope: Scope | None = None, calendar: WeekCalendar | None = None
    ) -> None:
        super().__init__(scope, num_hours_kept=NUM_INPUT_HOURS)
        self.attributes, self.calendar = np.array(attributes, dtype=np.int64), calendar or WeekCalendar()
        self.before_training = Persistence(self.scope)
        self.seen: list[Floats] = []
        self.first_hour = 0
        self.network: dict[str, Any] = {}

    def _step(self, hour: int, values: Floats | None) -> None:
        super()._step(hour, values)
        if self.history.num_series != len(self.attributes):
            found, expected = self.history.num_series, len(self.attributes)
            raise BadInput(f"{found} series observed, attributes given for {expected}; OrgLinear needs both alike")
        if hour != self.first_hour + len(self.seen):  # the first hour, or the first after a gap too long to fill
            self.first_hour, self.seen = hour, []
        self.seen.append(self.history.values[-1].copy())
        if values is not None:
            self.before_training.observe(hour, values)

    def train(self, seed: int) -> float:
        """Fit on everything observed, from the weights of the last time; answers with the validation loss."""
        least = NUM_INPUT_HOURS + NUM_VALIDATION_HOURS + self.scope.num_hours
        if len(self.seen) < least:
            raise BadInput(f"{len(self.seen)} hours observed, OrgLinear trains on at least {least}; observe more first")
        torch = _torch()
        torch.manual_seed(seed)
        self.network = self.network or _fresh(torch, self.attributes, self.scope.num_hours)
        origins = np.arange(NUM_INPUT_HOURS - 1, len(self.seen) - self.scope.num_hours)
        cut = len(origins) - NUM_VALIDATION_HOURS
        return self._descend(torch, origins[:cut], origins[cut:])

    def _descend(self, torch: Any, training: Any, validation: Any) -> float:
        optimiser = torch.optim.Adam(list(self.network.values()), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, EPOCHS_A_HALVING, 0.5)
        best, kept, num_worse = np.inf, {}, 0
        for _ in range(NUM_EPOCHS):
            shuffled = training[torch.randperm(len(training)).numpy()]
            for batch in np.array_split(shuffled, max(1, len(training) // BATCH)):
                optimiser.zero_grad()
                self._loss(torch, batch).backward()
                optimiser.step()
            schedule.step()
            loss = float(self._loss(torch, validation).detach())
            num_worse = 0 if loss < best else num_worse + 1
            if loss < best:
                best, kept = loss, {name: weight.detach().clone() for name, weight in self.network.items()}
            if num_worse == PATIENCE:
                break
        self.network = {name: weight.requires_grad_() for name, weight in kept.items()}
        return best

    def _loss(self, torch: Any, origins: Any) -> Any:
        """Mean negative log-likelihood of what followed these origins, where it was not zero."""
        seen = np.stack(self.seen)
        inputs = np.stack([seen[origin - NUM_INPUT_HOURS + 1 : origin + 1].T for origin in origins])
        goals = np.stack([seen[origin + 1 : origin + 1 + self.scope.num_hours].T for origin in origins])
        mean, sigma = self._forward(torch, inputs, [self.first_hour + int(origin) for origin in origins])
        wanted = torch.tensor(goals, dtype=torch.float32)
        loss = 0.5 * np.log(2 * np.pi) + torch.log(sigma) + (wanted - mean) ** 2 / (2 * sigma**2)
        return loss[wanted != 0].mean()

    def _forward(self, torch: Any, inputs: Floats, hours: Sequence[int]) -> tuple[Any, Any]:
        network, x = self.network, torch.tensor(inputs, dtype=torch.float32)
        padded = torch.nn.functional.pad(x, (NUM_AVERAGED // 2, NUM_AVERAGED // 2), mode="replicate")
        trend = torch.nn.functional.avg_pool1d(padded, NUM_AVERAGED, stride=1)
        moments = zip(
            *[(self.calendar.day_kind(hour), self.calendar.weekday(hour), hour % 24) for hour in hours], strict=True
        )
        embedded = [network[f"time_{index}"][list(part)] for index, part in enumerate(moments)]
        time = torch.cat(embedded, dim=1)[:, None].expand(-1, x.shape[1], -1)
        context = torch.cat([time, self._business(torch)[None].expand(len(x), -1, -1)], dim=2)
        parts = (x - trend, "cycle"), (trend, "trend"), (x, "sigma")
        cycle, slow, spread = (torch.cat([part, context], dim=2) @ network[name] for part, name in parts)
        return cycle + slow, torch.nn.functional.softplus(spread).clamp(min=LEAST_SIGMA)

    def _business(self, torch: Any) -> Any:
        """Self-attention over the embedded attributes of each series, flattened."""
        parts = [self.network[f"attribute_{index}"][column] for index, column in enumerate(self.attributes.T)]
        tokens = torch.stack(parts, dim=1)
        query, key, value = (tokens @ self.network[name] for name in ("query", "key", "value"))
        return (torch.softmax(query @ key.transpose(1, 2) / ATTENTION**0.5, dim=2) @ value).flatten(1)

    def _predict(self) -> Forecast:
        if not self.network:
            return self.before_training.forecast()
        torch = _torch()
        with torch.no_grad():
            moments = self._forward(torch, self.history.values.T[None], [self.history.hour or 0])
        mean, std = (part[0].numpy().astype(np.float64) for part in moments)
        values = DemandDistribution(mean[:, :, None] + std[:, :, None] * ndtri(np.array(self.scope.levels)), mean, std)
        return Forecast(tuple(range(1, self.scope.num_hours + 1)), self.scope.levels, values, values)


def _torch() -> Any:
    need("model 'orglinear'", "torch")
    return import_module("torch")


def _fresh(torch: Any, attributes: npt.NDArray[np.int64], num_hours: int) -> dict[str, Any]:
    sizes = {f"time_{index}": size for index, size in enumerate((2, 7, 24))}
    sizes |= {f"attribute_{index}": int(column.max()) + 1 for index, column in enumerate(attributes.T)}
    weights = {name: torch.randn(size, EMBEDDING) for name, size in sizes.items()}
    weights |= {name: torch.randn(EMBEDDING, ATTENTION) / EMBEDDING**0.5 for name in ("query", "key")}
    weights["value"] = torch.randn(EMBEDDING, EMBEDDING) / EMBEDDING**0.5
    num_inputs = NUM_INPUT_HOURS + EMBEDDING * (3 + attributes.shape[1])
    heads = ("cycle", "trend", "sigma")
    weights |= {name: torch.full((num_inputs, num_hours), 1.0 / NUM_INPUT_HOURS) for name in heads}
    return {name: weight.requires_grad_() for name, weight in weights.items()}

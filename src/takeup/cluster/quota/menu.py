"""The menu of promises: GPUs for a number of hours with a probability, all of them kept together.

How it works. `free_gpus[i][j]` is what demand leaves free for `hours[i]` with `probabilities[j]`. When demand takes
more than is free, weaker promises are broken before stronger ones: a higher probability is stronger, and at the same
probability the one that lasts longer. So a promise is kept with its probability if it and all stronger ones fit into
what is free for it; selling one uses up every weaker one. A stronger promise also satisfies a request for a weaker one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from takeup.cluster.model import Grade, Offer, State

HOUR_S = 3600.0
Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SpotPromise:
    """`num_gpus` GPUs are promised until `until_s`, with this probability."""

    num_gpus: float
    until_s: float
    probability: float


def promises_of(state: State, pool: str, probability: float) -> tuple[SpotPromise, ...]:
    """What was promised to guaranteed spot jobs that run, all with the same probability."""
    return tuple(
        SpotPromise(run.job.num_gpus, run.start_s + run.job.guarantee_h * HOUR_S, probability)
        for run in state.runs
        if run.job.pool == pool and run.grade == Grade.GUARANTEED
    )


@dataclass(frozen=True, slots=True)
class Menu:
    """What can be promised in a pool; `free_gpus[i][j]` belongs to `hours[i]` and `probabilities[j]`, both rising."""

    pool: str
    hours: tuple[float, ...]
    probabilities: tuple[float, ...]
    free_gpus: Table

    def available(self, sold: Iterable[SpotPromise], now_s: float) -> Table:
        """GPUs that can still be promised for each entry; fewer for more hours and higher probabilities."""
        live = [promise for promise in sold if promise.until_s > now_s]
        raw = [[self._room(live, now_s, hours, level) for level in self.probabilities] for hours in self.hours]
        for row in range(len(self.hours) - 1, -1, -1):  # a stronger promise covers a weaker one
            for column in range(len(self.probabilities) - 1, -1, -1):
                longer = raw[row + 1][column] if row + 1 < len(self.hours) else 0.0
                surer = raw[row][column + 1] if column + 1 < len(self.probabilities) else 0.0
                raw[row][column] = max(raw[row][column], longer, surer)
        return tuple(map(tuple, raw))

    def offers(self, num_gpus: int, sold: Iterable[SpotPromise], now_s: float) -> tuple[Offer, ...]:
        """The longest promise for each probability that nothing surer outlasts; the surest first."""
        table, found, longest = self.available(sold, now_s), [], 0.0
        for column in range(len(self.probabilities) - 1, -1, -1):
            enough = [hours for row, hours in enumerate(self.hours) if table[row][column] >= num_gpus]
            if enough and enough[-1] > longest:
                longest = enough[-1]
                found.append(Offer(self.pool, num_gpus, longest, self.probabilities[column]))
        return tuple(found)

    def _room(self, live: Sequence[SpotPromise], now_s: float, hours: float, level: float) -> float:
        """GPUs that may be added to this entry, so that it and every weaker promise sold is still kept."""
        room = self._free(hours, level) - _load(live, now_s, hours, level)
        for promise in live:
            left_h = (promise.until_s - now_s) / HOUR_S
            if (promise.probability, left_h) <= (level, hours):
                free = self._free(left_h, promise.probability)
                room = min(room, free - _load(live, now_s, left_h, promise.probability))
        return max(0.0, room)

    def _free(self, hours: float, level: float) -> float:
        """Free GPUs of the smallest entry that covers the request; 0 if none does."""
        for row, known_h in enumerate(self.hours):
            if known_h >= hours:
                columns = (column for column, known in enumerate(self.probabilities) if known >= level)
                return next((self.free_gpus[row][column] for column in columns), 0.0)
        return 0.0


def _load(live: Sequence[SpotPromise], now_s: float, hours: float, level: float) -> float:
    """GPUs of promises at least as strong."""
    return sum(
        promise.num_gpus
        for promise in live
        if (promise.probability, (promise.until_s - now_s) / HOUR_S) >= (level, hours)
    )

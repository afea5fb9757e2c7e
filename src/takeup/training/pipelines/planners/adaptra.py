"""ADAPTRA: a schedule that absorbs the measured delay of every link, as far as micro-batches and memory allow.

Wu et al., "Attack of the Bubbles" (ADAPTRA, PipeMorph), NSDI 2026, Algorithms 2 to 4.

How it works. Algorithm 2 determines how many forwards every stage computes before its first backward. Then the pipeline
is simulated with a greedy choice on each free rank: a backward, else a forward, else a weight gradient. The operations
in that order are the schedule. Four things are added to the paper:

    queues    a link has a latency and a service time; the plan includes the queueing of messages
    memory    a forward starts only while memory is free; weight gradients are not deferred indefinitely
    search    warm-ups, and the number of micro-batches in flight, are searched around Algorithm 2
    thrift    memory is lowered as far as the iteration does not become longer

The result is never slower than the plan of the paper, where that fits into memory: it is one of the candidates.
"""

from dataclasses import dataclass, replace

from takeup.training.pipelines.planners.warmups import absorbed_delays_s, adapt_warmups, clip_warmups, spread_warmups
from takeup.training.pipelines.profile import Link, Profile
from takeup.training.pipelines.schedule import PipelinePlan
from takeup.training.pipelines.timing.evaluation import SearchedSchedule, generate_schedule, make_plan, search_schedule

# The first plan, before any delay is known: as much slack on every link as memory allows, at no cost ------------------
#
# Wu et al., "Attack of the Bubbles" (ADAPTRA, PipeMorph), NSDI 2026, Algorithm 1. The paper spreads warm-ups evenly;
# but generated for links without delay, the schedule uses up the slack at once: the warm-up is followed by consecutive
# backwards. So the order is generated for *virtual* delays, the largest that the warm-ups absorb, and with no more
# micro-batches in flight than the warm-up of their stage. A real delay up to that is then absorbed.


@dataclass(frozen=True, slots=True)
class AdaptraInitial:
    """Fills the memory of the first stage; uses `slackness` for every link if no memory limit is known."""

    name: str = "adaptra_initial"
    slackness: int = 3

    def plan(self, profile: Profile) -> PipelinePlan:
        """A schedule for links that are healthy now and may become slow."""
        wanted = self.slackness * (profile.num_stages - 1) + 1
        known = profile.max_live(0) is not None
        most = min(profile.num_microbatches, profile.live_limits()[0] if known else wanted)
        warmups = clip_warmups(profile, spread_warmups(most, profile.num_stages), profile.live_limits())
        delays_s = absorbed_delays_s(profile, warmups)
        virtual = replace(profile, links=tuple(map(Link, delays_s)), hop_s=0.0, max_sends=None)
        schedule = generate_schedule(virtual, warmups, profile.live_limits(), flights=warmups)
        reason = f"warm-ups {warmups} absorb up to {', '.join(f'{1e3 * s:.4g}' for s in delays_s)} ms on the links"
        return make_plan(self.name, profile, schedule, (reason,))


@dataclass(frozen=True, slots=True)
class AdaptraAsPublished:
    """The plan of the paper: delays are latencies, memory is unlimited, warm-ups are those of Algorithm 2."""

    name: str = "adaptra_as_published"

    def plan(self, profile: Profile, bound_s: float | None = None) -> PipelinePlan:
        """The schedule for the total link delays, latency and service alike; computes the bound if not given."""
        warmups = clip_warmups(profile, adapt_warmups(profile), [profile.num_microbatches] * profile.num_ranks)
        latencies = tuple(Link(link.delay_s) for link in profile.links)
        schedule = generate_schedule(replace(profile, links=latencies, max_sends=None), warmups)
        reasons = (f"warm-ups {warmups}, from the delays of the links",)
        return make_plan(self.name, profile, schedule, reasons, bound_s=bound_s)


@dataclass(frozen=True, slots=True)
class Adaptra:
    """Generates at most `max_evaluations` schedules and keeps the best."""

    name: str = "adaptra"
    max_evaluations: int = 400

    def plan(self, profile: Profile) -> PipelinePlan:
        """The best schedule found for these links and this memory."""
        limits = profile.live_limits()
        wanted = adapt_warmups(profile) if profile.one_stage_per_rank else (1,) * profile.num_stages
        start = clip_warmups(profile, wanted, limits)
        found = search_schedule(profile, start, limits, self.max_evaluations)
        reasons = _reasons(profile, start, found)
        ours = make_plan(self.name, profile, found.schedule, reasons, found.num_evaluations, found.bound_s)
        if ours.iteration_s <= ours.bound_s or not _has_queues(profile):
            return ours
        published = AdaptraAsPublished().plan(profile, found.bound_s)
        if published.iteration_s < ours.iteration_s and published.fits_memory:
            return replace(published, planner=self.name, num_evaluations=found.num_evaluations + 1)
        return ours


def _has_queues(profile: Profile) -> bool:
    """Whether links have queueing; without it the paper's plan is the start of the search."""
    return profile.max_sends is not None or any(link.service_s > 0 for link in profile.links)


def _reasons(profile: Profile, start: tuple[int, ...], found: SearchedSchedule) -> tuple[str, ...]:
    links = list(enumerate(profile.links))
    slow = [f"link {i}: {1e3 * link.delay_s:.4g} ms" for i, link in links if link.delay_s > 0]
    busiest_s = max(stage.work_s for stage in profile.stages)
    starved = [str(i) for i, link in links if link.service_s / link.num_channels > busiest_s]
    reasons = [
        f"warm-ups {found.warmups}{'' if found.warmups == start else f', searched from {start}'}",
        f"delays: {', '.join(slow)}" if slow else "no link is slow",
        f"at most {max(found.caps)} micro-batches in memory at once",
    ]
    if starved:
        reasons.append(f"link {', '.join(starved)} carries less than stages compute: send fewer bytes, no order helps")
    return tuple(reasons)

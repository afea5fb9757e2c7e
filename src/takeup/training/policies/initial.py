"""The first plan, before any delay is known: as much slack on every link as memory allows, at no cost.

Wu et al., "Attack of the Bubbles" (ADAPTRA, PipeMorph), NSDI 2026, Algorithm 1. The paper spreads warm-ups evenly; but
generated for links without delay, the schedule uses up the slack at once: the warm-up is followed by consecutive
backwards. So the order is generated for *virtual* delays, the largest that the warm-ups absorb, and with no more
micro-batches in flight than the warm-up of their stage. A real delay up to that is then absorbed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from takeup.training.model.pipeline import Link, Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.policies.planned import make_plan
from takeup.training.policies.warmups import absorbed_delays_s, clip_warmups, spread_warmups
from takeup.training.timing.runs import generate_schedule


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

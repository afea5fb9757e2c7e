"""Zero bubble: split the backward, and fill bubbles with weight gradients. Links are not considered.

Qi et al., ICLR 2024. `zb_h1` warms up like 1F1B and holds as many micro-batches; `zb_h2` warms up with 2 (S - i) - 1
forwards, holds twice as many, and has no bubbles if all operations take equally long. Both come from the same generator
as the adaptive schedules, with the measured operation times and links that cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from takeup.training.model.pipeline import Link, Profile
from takeup.training.model.plan import PipelinePlan
from takeup.training.policies.planned import make_plan
from takeup.training.policies.warmups import clip_warmups
from takeup.training.timing.runs import generate_schedule


@dataclass(frozen=True, slots=True)
class ZeroBubble:
    """Holds `per_stage` micro-batches per pipeline stage, or as many as memory allows."""

    name: str = "zb_h1"
    per_stage: int = 1

    def plan(self, profile: Profile) -> PipelinePlan:
        """A schedule for the operation times; link delays are ignored."""
        num = profile.num_stages
        caps = [min(limit, self.per_stage * num) for limit in profile.live_limits()]
        wanted = [self.per_stage * (num - stage) - self.per_stage + 1 for stage in range(num)]
        warmups = clip_warmups(profile, wanted, caps)
        no_links = replace(profile, links=(Link(),) * len(profile.links), hop_s=0.0, max_sends=None)
        reason = f"warm-ups {warmups}, at most {max(caps)} micro-batches at once; links are not considered"
        return make_plan(self.name, profile, generate_schedule(no_links, warmups, caps), (reason,))

"""Registry of planners by name. To add one: a file here, a line below, a test, a row in the domain's README."""

from __future__ import annotations

from takeup.errors import UnknownName
from takeup.training.contract import Planner
from takeup.training.policies.adaptra import Adaptra, AdaptraAsPublished
from takeup.training.policies.gpipe import GPipe
from takeup.training.policies.initial import AdaptraInitial
from takeup.training.policies.interleaved import Interleaved
from takeup.training.policies.one_f_one_b import OneFOneB
from takeup.training.policies.zbv import ZeroBubbleV
from takeup.training.policies.zero_bubble import ZeroBubble

POLICIES: dict[str, Planner] = {
    "gpipe": GPipe(),
    "one_f_one_b": OneFOneB(),
    "interleaved_1f1b": Interleaved(),
    "zb_h1": ZeroBubble(),
    "zb_h2": ZeroBubble("zb_h2", per_stage=2),
    "zbv": ZeroBubbleV(),
    "adaptra": Adaptra(),
    "adaptra_initial": AdaptraInitial(),
    "adaptra_as_published": AdaptraAsPublished(),
}


def find_policy(name: str) -> Planner:
    """The planner of this name."""
    if name not in POLICIES:
        raise UnknownName("training policy", name, POLICIES)
    return POLICIES[name]

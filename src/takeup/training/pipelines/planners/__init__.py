"""Registry of planners by name. To add one: a file here, a line below, a test, a row in the domain's README."""

from takeup.core import lazy
from takeup.training.pipelines.contract import Planner
from takeup.training.pipelines.planners.adaptra import Adaptra, AdaptraAsPublished, AdaptraInitial
from takeup.training.pipelines.planners.baselines import GPipe, Interleaved, OneFOneB, ZeroBubble, ZeroBubbleV

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
    return lazy.find_policy("training", name, POLICIES, ("name", "plan"))

"""All policies by name. To add one: a file here, a line below, a test, a row in the domain's README."""

from takeup.core import plugins
from takeup.edge.contract import Policy
from takeup.edge.policies.auto import Auto
from takeup.edge.policies.cg import ColumnGeneration
from takeup.edge.policies.exact import Exact
from takeup.edge.policies.gma import Gma
from takeup.edge.policies.joint import Joint, JointPlus
from takeup.edge.policies.separate import CpuFirst, Local, MinimumGroups, RadioFirst

POLICIES: dict[str, Policy] = {
    "local": Local(),
    "radio_first": RadioFirst(),
    "cpu_first": CpuFirst(),
    "joint": Joint(),
    "joint_plus": JointPlus(),
    "gma": Gma(),
    "cg": ColumnGeneration(),
    "exact": Exact(),
    "auto": Auto(),
    "min_group": MinimumGroups(),
}


def find_policy(name: str) -> Policy:
    """The policy of this name."""
    return plugins.find_policy("edge", name, POLICIES, ("name", "ignores_cpu", "allocate"))

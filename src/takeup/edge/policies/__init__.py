"""All policies by name. To add one: a file here, a line below, a test, a row in the domain's README."""

from takeup.edge.contract import Policy
from takeup.edge.policies.auto import Auto
from takeup.edge.policies.car_p import CarByPriority
from takeup.edge.policies.cg import ColumnGeneration
from takeup.edge.policies.cpu_first import CpuFirst
from takeup.edge.policies.exact import Exact
from takeup.edge.policies.gma import Gma
from takeup.edge.policies.joint import Joint, JointPlus
from takeup.edge.policies.jtora import Jtora
from takeup.edge.policies.local import Local
from takeup.edge.policies.min_group import MinimumGroups
from takeup.edge.policies.radio_first import RadioFirst
from takeup.errors import UnknownName

POLICIES: dict[str, Policy] = {
    "local": Local(),
    "radio_first": RadioFirst(),
    "cpu_first": CpuFirst(),
    "joint": Joint(),
    "joint_append": Joint(order="append", name="joint_append"),
    "joint_plus": JointPlus(),
    "car_p": CarByPriority(),
    "jtora": Jtora(),
    "gma": Gma(),
    "cg": ColumnGeneration(),
    "exact": Exact(),
    "auto": Auto(),
    "min_group": MinimumGroups(),
}


def find_policy(name: str) -> Policy:
    """The policy of this name."""
    if name not in POLICIES:
        raise UnknownName("edge policy", name, POLICIES)
    return POLICIES[name]

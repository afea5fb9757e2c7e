"""All policies by name. To add one: a file here, a line below, a test, a row in the domain's README."""

from takeup.core import lazy
from takeup.edge.contract import Policy
from takeup.edge.policies.auto import Auto
from takeup.edge.policies.exact import Exact
from takeup.edge.policies.greedy import Greedy

POLICIES: dict[str, Policy] = {"auto": Auto(), "exact": Exact(), "greedy": Greedy()}


def find_policy(name: str) -> Policy:
    """The policy of this name."""
    return lazy.find_policy("edge", name, POLICIES, ("name", "ignores_cpu", "allocate"))

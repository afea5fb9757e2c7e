"""All policies by name. To add one: a file here, a line below, a test, a row in the domain's README."""

from functools import partial

from takeup.caching.contract import PolicySpec
from takeup.caching.policies.belady import FurthestNextUse
from takeup.caching.policies.dag import DagValue
from takeup.caching.policies.lerc import LeastEffectiveReferenceCount
from takeup.caching.policies.lrc import LeastReferenceCount
from takeup.caching.policies.lru import LeastRecentlyUsed, SparkEviction
from takeup.caching.policies.mrd import MostReferenceDistance
from takeup.core import lazy
from takeup.errors import BadInput, UnknownName

POLICIES: dict[str, PolicySpec] = {
    "lru": PolicySpec("lru", LeastRecentlyUsed),
    "spark": PolicySpec("spark", SparkEviction),
    "lrc": PolicySpec("lrc", LeastReferenceCount, uses_table=True),
    "lerc": PolicySpec("lerc", LeastEffectiveReferenceCount, uses_table=True),
    "mrd": PolicySpec("mrd", MostReferenceDistance, uses_table=True),
    "furthest_next_use": PolicySpec("furthest_next_use", FurthestNextUse, uses_table=True),
    "dag": PolicySpec("dag", DagValue, uses_table=True, admission=True),
    "belady": PolicySpec("belady", FurthestNextUse, uses_table=True, admission=True, offline=True),
}

DEPLOYABLE = ("lru", "lrc", "lerc", "mrd", "furthest_next_use", "dag")  # on the clusters of others: Spark, Dask


def find_deployable(policy: str | PolicySpec, engine: str) -> PolicySpec:
    """One of the policies that a cluster of this engine can run, by name or as it is."""
    base = policy.base if isinstance(policy, PolicySpec) else _words(policy)[0]
    if base not in DEPLOYABLE:
        raise UnknownName(f"policy for {engine}", base, DEPLOYABLE)
    return policy if isinstance(policy, PolicySpec) else find_policy(policy)


def find_policy(text: str) -> PolicySpec:
    """`lerc`, `lerc+admission` or `dag-admission`: a policy with its own default, with or without admission."""
    name, sign, option = _words(text)
    spec = lazy.find_policy("caching", name, POLICIES, ("name", "make", "uses_table"))
    if not sign:
        return _with_admission(spec, spec.name, spec.admission)
    if option != "admission":
        raise BadInput(f"policy {text!r} asks for {option!r}; the only option is '+admission' or '-admission'")
    return _with_admission(spec, text, "+" in text)


def _words(text: str) -> tuple[str, str, str]:
    return text.replace("-", "+").partition("+")


def _with_admission(spec: PolicySpec, name: str, admission: bool) -> PolicySpec:
    if not spec.uses_table:
        if admission:
            raise BadInput(f"policy {spec.name!r} keeps no rank to compare a new block with; drop '+admission'")
        return spec
    return PolicySpec(name, partial(spec.make, admission=admission), admission, spec.uses_table, spec.offline)

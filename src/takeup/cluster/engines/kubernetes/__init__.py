"""Kubernetes: a second scheduler for pods that name it, alongside kube-scheduler, over the plain API.

engine.py     observe and apply                       service.py   a round after every change
survey.py     pods and nodes as a state <── jobs.py   mirror.py    list and watch ──> objects.py
hands.py      decisions carried out ──> writer.py     ledger.py    what the server does not show yet
client.py     HTTP on kept-alive connections          access.py    API server address, credentials
notices.py    events and conditions                   quotas.py    quotas in a ConfigMap; kueue.py: in Kueue
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.cluster.engines.kubernetes.access import Access, find_access
    from takeup.cluster.engines.kubernetes.client import Client
    from takeup.cluster.engines.kubernetes.dialect import Dialect
    from takeup.cluster.engines.kubernetes.engine import KubernetesEngine, Stale
    from takeup.cluster.engines.kubernetes.kueue import Kueue
    from takeup.cluster.engines.kubernetes.quotas import QuotaStore
    from takeup.cluster.engines.kubernetes.service import follow

__all__ = ["Access", "Client", "Dialect", "KubernetesEngine", "Kueue", "QuotaStore", "Stale", "find_access", "follow"]

_HOMES = {
    "access": ("Access", "find_access"),
    "client": ("Client",),
    "dialect": ("Dialect",),
    "engine": ("KubernetesEngine", "Stale"),
    "kueue": ("Kueue",),
    "quotas": ("QuotaStore",),
    "service": ("follow",),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

"""Kubernetes: a second scheduler for pods that name it, alongside kube-scheduler, over the plain API.

engine.py     observe; decisions carried out, events     informer.py  list and watch ──> objects.py
snapshot.py   ledger, pods and nodes as a state          writer.py    changes of pods; quotas in a ConfigMap or Kueue
client.py     address, credentials, HTTP
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

"""Kubernetes: a second scheduler for pods that name it, alongside kube-scheduler, over the plain API.

engine.py     observe and apply                       informer.py  list and watch ──> objects.py
snapshot.py   pods and nodes as a state               ledger.py    what the server does not show yet
actuator.py   decisions carried out, events           writer.py    changes of pods, quotas in a ConfigMap
client.py     address, credentials, HTTP              kueue.py     quotas in Kueue
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

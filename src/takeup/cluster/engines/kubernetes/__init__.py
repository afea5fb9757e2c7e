"""Kubernetes: a second scheduler for pods that name it, alongside kube-scheduler, over the plain API.

engine.py     observe and apply                       service.py   a round after every change
survey.py     pods and nodes as a state <── jobs.py   mirror.py    list and watch ──> objects.py
hands.py      decisions carried out ──> writer.py     ledger.py    what the server does not show yet
client.py     HTTP on kept-alive connections          access.py    API server address, credentials
notices.py    events and conditions                   quotas.py    quotas in a ConfigMap; kueue.py: in Kueue
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

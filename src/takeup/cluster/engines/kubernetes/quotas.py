"""Quotas where people can see them, and where they survive a restart: a ConfigMap, one entry for each pool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from takeup.cluster.engines.kubernetes.client import Client, Json, RequestRefused
from takeup.cluster.engines.kubernetes.writer import NOT_FOUND
from takeup.cluster.model import Quota


@dataclass(frozen=True, slots=True)
class QuotaStore:
    """A ConfigMap whose entries are tables of promised hours and GPUs, as JSON."""

    client: Client
    namespace: str = "takeup"
    name: str = "takeup-quotas"

    def read(self) -> dict[str, Quota]:
        """The quotas that were written last; those that cannot be read are left out."""
        try:
            found = self.client.get(self._path)
        except RequestRefused as error:
            if error.status == NOT_FOUND:
                return {}
            raise
        quotas = {pool: _quota(pool, text) for pool, text in (found.get("data") or {}).items()}
        return {pool: quota for pool, quota in quotas.items() if quota is not None}

    def write(self, quotas: Mapping[str, Quota]) -> None:
        """Replace what is there."""
        data = {pool: json.dumps({str(h): str(g) for h, g in it.gpus_by_hours.items()}) for pool, it in quotas.items()}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": data}
        try:
            self.client.request("PATCH", self._path, body)
        except RequestRefused as error:
            if error.status != NOT_FOUND:
                raise
            self.client.request("POST", self._folder, body)

    @property
    def _folder(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self.name}"


def _quota(pool: str, text: str) -> Quota | None:
    try:
        return Quota(pool, {float(hours): float(gpus) for hours, gpus in json.loads(text).items()})
    except (ValueError, AttributeError, TypeError):
        return None

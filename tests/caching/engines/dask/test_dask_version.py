"""Doctor is told whether the plug-in would load into the installed Dask."""

from __future__ import annotations

from importlib.metadata import version

import distributed.spill
import pytest
import zict

from takeup.caching.engines.dask.plugins import why_unsupported
from takeup.doctor import REQUIREMENTS, examine


def test_the_plug_in_would_load_into_the_dask_that_is_here() -> None:
    assert why_unsupported(version("distributed")) == ""


def test_a_dask_with_another_spill_buffer_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reworked(zict.LRU):  # type: ignore[type-arg]
        pass

    monkeypatch.setattr(distributed.spill, "LRU", Reworked, raising=False)
    monkeypatch.setattr(zict.buffer, "LRU", Reworked)

    assert "2099.1.0" in why_unsupported("2099.1.0")
    assert "stock behaviour" in why_unsupported("2099.1.0")


def test_doctor_asks() -> None:
    [need] = [need for need in REQUIREMENTS if need.part == "caching engine dask"]
    works, found = examine(need)

    assert need.why_not.startswith("takeup.caching.engines.dask.plugins")
    assert (works, "distributed" in found) == (True, True)

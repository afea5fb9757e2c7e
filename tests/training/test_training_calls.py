"""The log of calls: what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.training.stragglers.contract import CALL, CallLog, Operation


def test_a_log_keeps_calls_of_groups_it_knows() -> None:
    calls = np.zeros(2, CALL)
    calls["operation"] = Operation.ALL_REDUCE

    log = CallLog(3, calls, {0: (0, 1, 2, 3)})

    assert [Operation(kind) for kind in log.calls["operation"]] == [Operation.ALL_REDUCE] * 2


def test_calls_of_an_unknown_group_are_refused() -> None:
    calls = np.zeros(1, CALL)
    calls["group"] = 7

    with pytest.raises(BadInput, match="rank 2 names group 7"):
        CallLog(2, calls, {0: (0, 1)})


def test_rows_of_another_kind_are_refused() -> None:
    with pytest.raises(BadInput, match="the log of rank 0 holds"):
        CallLog(0, np.zeros(1, [("time", np.float64)]), {})

"""How long things are left alone that did not work."""

from __future__ import annotations

import pytest

from takeup.cluster.engines.slurm.backoff import Backoff, JobBackoff
from takeup.cluster.engines.slurm.commands import SlurmDown


def test_each_silence_is_waited_for_twice_as_long_until_somebody_answers() -> None:
    now_s = [0.0]
    patience = Backoff(lambda: now_s[0], first_s=1.0, most_s=4.0)
    for wait_s in (1.0, 2.0, 4.0, 4.0):
        patience.failed()
        now_s[0] += wait_s - 0.01
        with pytest.raises(SlurmDown):
            patience.require()
        now_s[0] += 0.01
        patience.require()
    patience.succeeded()
    patience.failed()
    now_s[0] += 1.0

    patience.require()


def test_a_job_rests_longer_each_time_and_others_do_not() -> None:
    rests = JobBackoff(first_s=60.0, most_s=100.0)

    rests.put_off("1", 0.0)
    assert (rests.names(59.0), rests.names(60.0)) == ({"1"}, set())
    rests.put_off("1", 100.0)
    rests.put_off("2", 100.0)
    assert (rests.names(159.0), rests.names(199.0), rests.names(200.0)) == ({"1", "2"}, {"1"}, set())

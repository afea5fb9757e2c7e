"""A pause in which a rank dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from takeup.training.stragglers.contract import Confirmation
from takeup.training.stragglers.watch.confirmation import PauseController
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingReader


class DeadlyPauses(PauseController):
    """The last rank dies as soon as all stand."""

    def _tested(self, readers: Mapping[int, RingReader], passes: Sequence[Sequence[tuple[int, int]]]) -> Confirmation:
        os.kill(readers[max(readers)].word(HeaderWord.PID), signal.SIGKILL)
        return super()._tested(readers, passes)

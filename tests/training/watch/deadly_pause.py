"""A pause in which a rank dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from takeup.training.engines.pytorch.watch.confirm import Confirmed, Pauses
from takeup.training.engines.pytorch.watch.ring import Word
from takeup.training.engines.pytorch.watch.rows import Reader


class DeadlyPauses(Pauses):
    """The last rank dies as soon as all stand."""

    def _tested(self, readers: Mapping[int, Reader], passes: Sequence[Sequence[tuple[int, int]]]) -> Confirmed:
        os.kill(readers[max(readers)].word(Word.PID), signal.SIGKILL)
        return super()._tested(readers, passes)

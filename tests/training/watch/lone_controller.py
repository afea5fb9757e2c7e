"""A controller that stops all ranks and is then killed: `lone_controller.py FOLDER OPERATION GROUP SIZE`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from takeup.training.engines.pytorch.watch.confirm import Pauses
from takeup.training.engines.pytorch.watch.gather import Gather

folder, anchor = Path(sys.argv[1]), (int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
gather = Gather(folder)
gather.look()
assert gather.is_complete
with Pauses(folder)._stopped(gather.readers, dict.fromkeys(gather.readers, anchor)):
    (folder / "stopped").touch()
    os.kill(os.getpid(), signal.SIGKILL)

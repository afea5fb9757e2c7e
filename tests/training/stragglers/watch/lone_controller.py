"""A controller that says it is ready, hears `FOLDER OPERATION GROUP SIZE`, stops all ranks and is then killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from takeup.training.stragglers.watch.confirmation import PauseController
from takeup.training.stragglers.watch.ring_reader import RingCollector

print("ready", flush=True)
name, *numbers = input().split()
operation, group, size = map(int, numbers)
folder = Path(name)
gather = RingCollector(folder)
gather.poll()
assert gather.is_complete
with PauseController(folder)._stopped(gather.readers, dict.fromkeys(gather.readers, (operation, group, size))):
    (folder / "stopped").touch()
    os.kill(os.getpid(), signal.SIGKILL)

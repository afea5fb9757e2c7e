"""The replayed cluster: a whole trace under a scheduler, from event to event."""

from contextlib import suppress
from pathlib import Path

from takeup.cluster.scheduling import layout
from takeup.cluster.simulate.replay import ReplayPrefix, replay
from takeup.core.compiled import drop_stale_code

__all__ = ["ReplayPrefix", "replay"]


def _drop_code_of_older_kernels() -> None:
    """These kernels hold copies of those of `scheduling`: forget them when a source there is newer. Never fails."""
    with suppress(OSError):
        newest = max(path.stat().st_mtime for path in Path(layout.__file__).parent.glob("*.py"))
        compiled = list(Path(__file__).parent.glob("__pycache__/*.nb?"))
        if any(path.stat().st_mtime < newest for path in compiled):
            for path in compiled:
                path.unlink(missing_ok=True)


drop_stale_code(__file__)
_drop_code_of_older_kernels()

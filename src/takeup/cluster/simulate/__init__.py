"""The replayed cluster: a whole trace under a scheduler, from event to event."""

from contextlib import suppress
from pathlib import Path

from takeup.cluster import scheduling as fast
from takeup.cluster.scheduling import layout, rules
from takeup.cluster.simulate.replay import ReplayPrefix, replay
from takeup.core.compiled import drop_stale_code

__all__ = ["ReplayPrefix", "replay"]


# Compiled replay of one pool: `agenda` orders what comes, `story` keeps what happened, `events` lives through it ------

drop_stale_code(__file__)


def _drop_code_of_older_kernels() -> None:
    """These kernels hold copies of those of the fleet: forget them when a source there is newer. Never fails."""
    with suppress(OSError):
        sources = [*Path(fast.__file__).parent.glob("*.py"), Path(layout.__file__), Path(rules.__file__)]
        newest = max(path.stat().st_mtime for path in sources)
        compiled = list(Path(__file__).parent.glob("__pycache__/*.nb?"))
        if any(path.stat().st_mtime < newest for path in compiled):
            for path in compiled:
                path.unlink(missing_ok=True)


_drop_code_of_older_kernels()

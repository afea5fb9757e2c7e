"""The cells and players of a scenario, and fitted models on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from takeup.core.files import write_atomically
from takeup.errors import BadInput
from takeup.streaming.experiment.scenario import StreamingScenario
from takeup.streaming.model import Capacity, CapacityFit, Cell, Player, Views


def cells_of(scenario: StreamingScenario) -> list[Cell]:
    """The cell, once for each arrival rate."""
    fitted = _fitted_capacity(scenario)
    mean_bps = fitted.mean_bps if fitted else 2.8e6
    capacity_bps = mean_bps if scenario.capacity_bps is None else scenario.capacity_bps
    views = tuple(
        Views(share, mean_s) for share, mean_s in zip(scenario.view_shares, scenario.mean_video_s, strict=True)
    )
    return [
        Cell(
            capacity_bps,
            scenario.bitrate_bps,
            arrivals_per_s,
            scenario.max_users,
            views,
            scenario.opportunistic,
            fitted.capacity if fitted else None,
        )
        for arrivals_per_s in scenario.arrivals_per_s
    ]


def players_of(scenario: StreamingScenario) -> list[Player]:
    """The player, once for each start threshold."""
    return [Player(start_s, scenario.resume_s) for start_s in scenario.start_s]


def _fitted_capacity(scenario: StreamingScenario) -> CapacityFit | None:
    if scenario.model is not None:
        return load_model(Path(scenario.model))
    if scenario.log is None:
        return None
    from takeup.streaming.policies.capacity_fit import fit_capacity
    from takeup.streaming.traces import read_log

    return fit_capacity(read_log(Path(scenario.log)).per_second())


def save_model(path: Path, fit: CapacityFit) -> None:
    """Keep a fitted capacity as JSON."""
    values = {
        "mean_bps": fit.mean_bps,
        "num_slow": fit.num_slow,
        "num_fast": fit.num_fast,
        "window_s": fit.window_s,
        "misfit": fit.misfit,
        "levels": fit.capacity.levels.tolist(),
        "generator_per_s": fit.capacity.generator.tolist(),
    }
    write_atomically(path, json.dumps(values, indent=1) + "\n")


def load_model(path: Path) -> CapacityFit:
    """Read what `save_model` wrote."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        capacity = Capacity(np.array(values["levels"], float), np.array(values["generator_per_s"], float))
        num_slow, num_fast, window_s = (int(values[key]) for key in ("num_slow", "num_fast", "window_s"))
        mean_bps, misfit = float(values["mean_bps"]), float(values["misfit"])
        return CapacityFit(capacity, mean_bps, num_slow, num_fast, window_s, misfit)
    except OSError as error:
        raise BadInput(f"cannot read model {path}: {error.strerror}; make one with 'takeup streaming fit'") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, BadInput) as error:
        raise BadInput(f"{path} is not a fitted model ({error!r}); make one with 'takeup streaming fit'") from error

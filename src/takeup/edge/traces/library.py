"""The instance library: 300 cells that anyone can draw again from their numbers, with best known plans and bounds.

Cells differ in scenario, size, number of cores, groups and rates (`cell_traits`). `library.csv` has what the best known
plan of a cell is worth and what no plan exceeds; a cell without a row has not been solved for it.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from takeup.edge.model import Instance
from takeup.edge.traces.cellular import uma_setting, umi_setting
from takeup.edge.traces.files import CQI_64QAM
from takeup.errors import BadInput

NUM_CELLS, SEED = 300, 38_901
RESULTS = Path(__file__).with_name("library.csv")
SIZES = ((20, 51), (30, 51), (40, 106), (60, 106), (100, 273), (200, 273))  # devices and blocks
CORES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class CellTraits:
    """What a cell of the library is like."""

    number: int
    scenario: str
    num_devices: int
    num_subcarriers: int
    num_cores: int
    contiguous: bool
    modulated: bool


@dataclass(frozen=True, slots=True)
class BestKnown:
    """The best known worth of a cell, a bound on it, and the milliseconds after which they were found."""

    worth_j: float
    bound_j: float
    budget_ms: float


def cell_traits(number: int) -> CellTraits:
    """All combinations of cores, groups, rates and scenarios, over the sizes in turn."""
    if not 0 <= number < NUM_CELLS:
        raise BadInput(f"the library has cells 0 to {NUM_CELLS - 1}, not {number}; give one of these numbers")
    row, place = divmod(number, len(SIZES))
    combination, core = divmod(row, len(CORES))
    return CellTraits(
        number,
        "uma" if combination & 1 else "umi",
        *SIZES[place],
        num_cores=CORES[core],
        contiguous=bool(combination & 2),
        modulated=bool(combination & 4),
    )


def library_cell(number: int) -> Instance:
    """The cell of this number."""
    traits = cell_traits(number)
    setting = {"umi": umi_setting, "uma": uma_setting}[traits.scenario]
    random = np.random.default_rng([SEED, number])
    plain = setting(random, traits.num_devices, traits.num_subcarriers)
    radio = replace(plain.radio, modulations=CQI_64QAM if traits.modulated else ())
    return replace(plain, radio=radio, num_cores=traits.num_cores, contiguous=traits.contiguous)


def best_known() -> dict[int, BestKnown]:
    """Best known results by the number of the cell."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return {
            int(row["cell"]): BestKnown(float(row["worth_j"]), float(row["bound_j"]), float(row["budget_ms"]))
            for row in csv.DictReader(file)
        }

"""What a user of the package meets first: names that work together, loaded on use."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from takeup import edge


def test_the_public_names_are_enough_to_solve_and_check_an_instance() -> None:
    instance = edge.generate("paper", np.random.default_rng(1), 6)
    answer = edge.find_policy("greedy").allocate(instance)

    assert edge.first_violation(instance, answer.allocation) is None
    assert len(list(answer.decisions())) == 6


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, takeup.edge; print(*({'numpy', 'scipy', 'numba', 'click'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "\n"

"""What 'fit' and 'predict' import: a log becomes a prediction within a second, so only the chart may be heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"numba", "numpy.ma", "pandas", "pyarrow", "pydantic", "scipy"}
LOG = Path(__file__).parent / "data" / "drive.csv"
RUN = """
import sys
from takeup.cli import main
sys.argv = ["takeup", "streaming", *sys.argv[1:]]
try:
    main()
finally:
    print(" ".join(sys.modules), file=sys.stderr)
"""


def run(folder: Path, *arguments: str) -> tuple[list[str], set[str]]:
    """What the command wrote, and the modules it imported."""
    command = [sys.executable, "-c", RUN, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    *said, modules = ended.stderr.splitlines()
    return said, set(modules.split())


def test_fit_and_predict_draw_their_charts_without_heavy_imports(tmp_path: Path) -> None:
    fitted, for_fit = run(tmp_path, "fit", str(LOG))
    predicted, for_predict = run(tmp_path, "predict")

    assert fitted == ["wrote takeup-out/throughput-of-drive.png"]
    assert predicted == ["wrote takeup-out/p-stall-by-start-threshold.png"]
    assert for_fit & HEAVY == set()
    assert for_predict & HEAVY == set()
    assert "numpy" in for_fit & for_predict


@pytest.mark.parametrize("arguments", [("predict",), ("predict", "--json")])
def test_every_way_to_predict_is_as_light(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    _, modules = run(tmp_path, *arguments)

    assert modules & HEAVY == set()


def test_a_prediction_that_is_checked_on_its_log_imports_the_simulator_and_nothing_else(tmp_path: Path) -> None:
    _, modules = run(tmp_path, "predict", "--log", str(LOG))

    assert "takeup.streaming.simulate.events" in modules
    assert modules & HEAVY <= {"numba", "numpy.ma", "scipy"}  # numba and what it imports

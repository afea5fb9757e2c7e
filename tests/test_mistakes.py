"""45 mistakes that newcomers make: each ends in one sentence that names what was found and what to do, exit code 2.

The list is that of a usability review; it is kept whole, so that no answer gets worse unnoticed. None of them may end
in a traceback, and none may be accepted in silence.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Run
from takeup.cli import with_option

ROOT = Path(__file__).parent.parent
FILES = {
    "two.csv": "a,b\n1,2\n",
    "bytes.csv": "task,job,compute_s,inputs,outputs,output_bytes\na,0,1,,x,4MB\n",
    "nogpu.csv": "submit_time,duration\n0,5\n",
    "minutes.csv": "submit_time,num_gpus,duration_min\n0,1,5\n",
    "mbps.csv": "mbps\n5\n6\n7\n",
    "megabit.csv": "rate_bps\n5.1\n6.2\n7.0\n",
    "cell.json": '{"format": "takeup edge instance", "version": 1}',
    "sacct.txt": "JobID|Submit|Start|ReqTRES\n1|2026-03-02T01:00:00|2026-03-02T01:00:10|cpu=8\n",
}
SERVE = ("serve", "takeup/tiny-sdxl")
MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # answered well from the beginning
    "a size with a strange unit": (("caching", "compare", "lru", "--capacity", "40GBB"), ("'40GBB'", "'2GB'", "'40%'")),
    "a size of nothing": (("caching", "compare", "lru", "--capacity", "0%"), ("'0%'", "above zero")),
    "a command misspelt": (("cachng",), ("did you mean 'caching'?",)),
    "a workload misspelt": (("caching", "compare", "lru", "--workload", "pagerak"), ("did you mean 'pagerank'?",)),
    "an engine misspelt": (("edge", "run", "auto", "--engine", "cloudlat"), ("did you mean 'cloudlet'?",)),
    "more GPUs than there are": (
        ("cluster", "offer", "--workload", "small", "--pool", "H800", "--gpus", "9999"),
        ("9999", "GPUs"),
    ),
    "a pool without a price": (
        ("cluster", "benefit", "gfs", "--workload", "small", "--price", "A100-SXM4-80GB=1"),
        ("'H800' has no price", "--price H800="),
    ),
    "an open address without keys": ((*SERVE, "--host", "0.0.0.0"), ("0.0.0.0", "--keys")),
    "a link that is not there": (("training", "plan", "--slow", "9:20"), ("no link 9", "0 to 2")),
    "bytes for a rate": (("streaming", "predict", "--capacity", "2.8MB"), ("'2.8MB' is not a rate", "'2.5Mbit'")),
    "an event log that is not there": (("caching", "whatif", "nowhere.log"), ("nowhere.log", "does not exist")),
    "a trace that is not there": (("caching", "compare", "lru", "--trace", "nowhere.csv"), ("nowhere.csv", "check")),
    "a throughput log that is not there": (("streaming", "fit", "nowhere.csv"), ("nowhere.csv", "check the path")),
    "an image that is not there": (("serving", "edit", "nowhere.png", "m.png", "a hat"), ("nowhere.png", "give the")),
    "a trace without GPUs": (("cluster", "compare", "fifo", "--trace", "nogpu.csv"), ("number of GPUs", "num_gpus")),
    "a unit inside a cell": (
        ("caching", "compare", "lru", "--trace", "bytes.csv"),
        ("line 2", "'output_bytes'", "'4MB'"),
    ),
    "no scheduler of Dask": (
        ("caching", "compare", "lru", "--on", "tcp://127.0.0.1:9"),
        ("no Dask scheduler", "tcp://127.0.0.1:8786"),
    ),
    "a negative start": (("streaming", "predict", "--start", "-2"), ("--start", "-2", "zero or more")),
    "a port beyond all ports": ((*SERVE, "--port", "99999"), ("--port", "99999", "65535")),
    "a number in words": (("edge", "solve", "--devices", "twenty"), ("--devices", "'twenty'")),
    "a paper misspelt": (("reproduce", "lrcc"), ("did you mean 'lrc'?",)),
    "a table for a report": (("run-again", "two.csv"), ("two.csv", "give a report")),
    "a folder that cannot be written": (("doctor", "--out", "/proc/none"), ("/proc/none", "choose another place")),
    "a log without its column": (("streaming", "fit", "two.csv"), ("two.csv", "'rate_bps'")),
    "a task table without its columns": (("caching", "compare", "lru", "--trace", "two.csv"), ("two.csv", "'task'")),
    "a cell without its gains": (("edge", "solve", "cell.json"), ("'gains' is missing", "each device")),
    "no kubeconfig": (("cluster", "run", "gfs", "--engine", "kubernetes", "--dry-run"), ("kubeconfig", "--kubeconfig")),
    # half answers, poor answers
    "two letters swapped": (("caching", "compare", "lru,lcr"), ("did you mean 'lrc'?",)),
    "a stop of the tour misspelt": (("tour", "--only", "lcr"), ("did you mean 'lrc'?",)),
    "the beginning of a pool": (
        ("cluster", "compare", "fifo", "--workload", "small", "--pool", "A100"),
        ("did you mean 'A100-SXM4-80GB'?",),
    ),
    "a slow link in words": (("training", "plan", "--slow", "slow"), ("--slow is 'slow'", "LINK:LATENCY")),
    "no arrivals": (("streaming", "predict", "--arrivals", "0,12"), ("--arrivals is 0.0", "above zero")),
    "rates in Mbit/s by name": (("streaming", "fit", "mbps.csv"), ("'mbps'", "bit/s", "'rate_bps'")),
    "durations in minutes": (("cluster", "compare", "fifo", "--trace", "minutes.csv"), ("duration_s", "run_time")),
    "a program of Spark that is not there": (
        ("caching", "run", "lru", "--engine", "spark", "--", "nowhere/spark-submit", "job.py"),
        ("'nowhere/spark-submit'", "give the path"),
    ),
    "output of sacct without GPUs": (("cluster", "compare", "fifo", "--trace", "sacct.txt"), ("sacct.txt",)),
    # accepted in silence
    "40 for 40 %": (("caching", "compare", "lru", "--capacity", "40"), ("40 bytes", "'40%'")),
    "kbit/s without a unit": (("streaming", "predict", "--bitrate", "360"), ("--bitrate", "360", "'360kbit'")),
    "Mbit/s in a column of bit/s": (("streaming", "fit", "megabit.csv"), ("megabit.csv", "unit of the rate")),
    "no devices": (("edge", "solve", "--devices", "0"), ("--devices is 0", "1")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_in_one_sentence(
    mistake: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    words, expected = MISTAKES[mistake]
    outcome = run(*words)

    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert [word for word in expected if word not in outcome.err] == [], outcome.err
    assert len(outcome.err.strip().splitlines()[-1]) < 500


WITHOUT_EXTRAS = """
import sys
blocked = set(sys.argv[1].split(","))
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in blocked else real(name, package)
sys.argv = ["takeup", *sys.argv[2:]]
from takeup.cli import main
main()
"""


@pytest.mark.parametrize(
    ("missing", "words", "expected"),
    [
        ("PIL", ("serving", "edit", "p.png", "m.png", "x"), ("'pillow'", "pip install 'takeup[")),
        ("torch", ("serving", "quality"), ("'torch'", "pip install 'takeup[")),
        ("fastapi,torch", SERVE, ("'fastapi'", "'torch'", "pip install 'takeup[web,diffusion]'")),
        ("torch", ("training", "watch", "--", "true"), ("'torch'", "pip install 'takeup[torch]'")),
        ("distributed", ("caching", "compare", "lru", "--on", "tcp://127.0.0.1:9"), ("'distributed'", "takeup[dask]")),
    ],
)
def test_a_missing_extra_is_named_and_never_a_traceback(
    missing: str, words: tuple[str, ...], expected: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("p.png", "m.png"):
        (tmp_path / name).write_bytes((ROOT / "src/takeup/samples/photo.png").read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, missing, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert [word for word in expected if word not in done.stderr] == [], done.stderr


def test_there_are_45_of_them() -> None:
    others = len(test_a_missing_extra_is_named_and_never_a_traceback.pytestmark[0].args[1])  # type: ignore[attr-defined]

    assert len(MISTAKES) + others == 45


@pytest.mark.parametrize(
    ("message", "words", "shown"),
    [
        ("start_s is -2.0; give more", ["streaming", "predict"], "--start is -2.0; give more"),
        ("options: 'slow' is 'x': write", ["training", "plan", "--slow", "x"], "--slow is 'x': write"),
        ("start_s is -2.0", ["edge", "solve"], "start_s is -2.0"),
        ("a log is empty", ["streaming", "predict"], "a log is empty"),
        ("nothing is here", [], "nothing is here"),
    ],
)
def test_a_field_is_named_by_the_option_that_sets_it(message: str, words: list[str], shown: str) -> None:
    assert with_option(message, words) == shown

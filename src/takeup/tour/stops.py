"""The nine systems of the tour: problem, scenario, the number that is shown, and where the system loses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

DRIVE = str(files("takeup") / "samples" / "drive.csv")
GUIDES = "https://github.com/takeup-project/takeup/blob/main/docs/guides"


@dataclass(frozen=True, slots=True)
class Measure:
    """Which rows and column of a report are shown: ours, and the alternatives compared with it.

    `what` says what the number is; values are multiplied by `scale` and shown with `digits` decimals and `unit`.
    """

    what: str
    ours: str
    column: str
    unit: str
    label: str = "policy"
    table: int = 0
    where: Mapping[str, Any] = field(default_factory=dict)
    more_is_better: bool = False
    scale: float = 1.0
    digits: int = 0


@dataclass(frozen=True, slots=True)
class TourStop:
    """One system: its problem in at most seven words, what is run and shown, and the line that puts it to use."""

    system: str
    problem: str
    scenario: Mapping[str, Any]
    measure: Measure
    why: str
    command: str
    guide: str


STOPS = (
    TourStop(
        "lrc",
        "Iterative jobs recompute blocks that were dropped.",
        {
            "domain": "caching",
            "verb": "compare",
            "workload": "pagerank",
            "policies": ["lru", "lrc", "dag"],
            "capacities": ["20%", "30%", "40%"],
            "miss": "recompute",
        },
        Measure(
            "PageRank under dag, our default; memory for 30 % of its data", "dag", "time", " s", where={"cache": 30}
        ),
        "LRC counts the tasks that will still read a block and drops the block with the fewest; dag, our default, "
        "weighs that count with the cost of a recomputation. With memory for everything no policy gains, and an "
        "application without reuse gains nothing; on Spark SQL the difference is 2 %.",
        "takeup caching run dag --engine spark -- spark-submit job.py",
        "spark",
    ),
    TourStop(
        "lerc",
        "Half of a task's inputs saves nothing.",
        {
            "domain": "caching",
            "verb": "compare",
            "workload": "zip",
            "policies": ["lru", "lrc", "lerc"],
            "capacities": ["20%", "40%", "60%", "80%"],
            "cost_model": "all-or-nothing",
        },
        Measure(
            "of the reads save time; ten tenants zip files, 40 % of the memory",
            "lerc",
            "effective",
            " %",
            where={"cache": 40},
            more_is_better=True,
            scale=100,
        ),
        "A task is fast only if all its inputs are in memory. LERC counts complete groups only, so that every hit "
        "is effective; LRC has as many hits, and they save no time. Where tasks read one block each, LERC is LRC.",
        "takeup.caching.engines.dask.install(client)",
        "dask",
    ),
    TourStop(
        "edge",
        "Radio and CPU are planned separately.",
        {
            "domain": "edge",
            "verb": "compare",
            "policies": ["greedy", "auto"],
            "num_instances": 4,
        },
        Measure("of the largest possible saving is missed, at most", "auto", "gap", " %", digits=1),
        "Devices need subcarriers and a slot of the CPU at the same time. auto plans both together and proves how "
        "far its plan is from the best one. It takes up to half a second; greedy accepts one device after the other "
        "in some milliseconds and misses more.",
        "takeup edge solve --devices 20",
        "plan-an-edge-site",
    ),
    TourStop(
        "qoe",
        "Videos stall though the link seems fast.",
        {
            "domain": "streaming",
            "verb": "advise",
            "logs": [DRIVE],
            "bitrate_bps": 2.4e6,
            "players": ["dash.js", "hls.js"],
        },
        Measure(
            "of the videos stall with the advised start of dash.js",
            "best",
            "P(stall)",
            " %",
            label="settings",
            where={"player": "dash.js"},
            scale=100,
        ),
        "The log of a link is replayed with the rules of the player, and the start threshold of least cost is "
        "chosen. Viewers wait some seconds longer for the start. One log is one link: the 90 % interval for the "
        "next one is wide, and the report shows it.",
        "takeup streaming advise LOG --bitrate 2.4Mbit",
        "predict-from-a-throughput-log",
    ),
    TourStop(
        "adaptra",
        "One slow link idles a whole pipeline.",
        {
            "domain": "training",
            "verb": "compare",
            "policies": ["one_f_one_b", "zb_h1", "zb_h2", "adaptra"],
            "delays_ms": [0, 20, 40],
        },
        Measure("per iteration with 20 ms on one link", "adaptra", "iteration", " ms", label="planner", table=1),
        "The schedule has slack exactly on the slow link, so that its delay is paid once instead of once for "
        "every micro-batch. It holds more micro-batches in memory than 1F1B (8 instead of 4 here); on healthy "
        "links it is as fast as ZB-H2 and not faster.",
        "torchrun --nproc-per-node 4 train.py",
        "adaptive-pipeline",
    ),
    TourStop(
        "gfs",
        "Spot jobs are evicted without any warning.",
        {"domain": "cluster", "verb": "compare", "workload": "small", "policies": ["fifo", "kube", "slurm", "gfs"]},
        Measure(
            "of spot GPU time has a promise; stock schedulers have none",
            "gfs",
            "spot time promised",
            " %",
            more_is_better=True,
        ),
        "A forecast of the demand says which capacity can be guaranteed, and for how long. fifo evicts no job, "
        "and lets high-priority jobs wait longest; kube and slurm evict as often as gfs does, without a promise. "
        "On a fleet that is always full there is nothing to promise.",
        "takeup cluster run gfs --engine slurm --dry-run",
        "sell-idle-gpus",
    ),
    TourStop(
        "falcon",
        "In slow jobs all ranks look slow.",
        {"domain": "papers", "verb": "reproduce", "paper": "falcon"},
        Measure(
            "of 120 drawn jobs judged right",
            "ours",
            "accuracy",
            " %",
            label="detector",
            table=2,
            more_is_better=True,
        ),
        "The culprit is the rank that arrives last and waits least. The jobs are drawn with noise as it was "
        "recorded; jumps of less than about a tenth of an iteration are below what is reported. A job that is "
        "equally slow from its first step has no jump and is found by comparing its ranks.",
        "takeup training watch -- torchrun --nproc-per-node 4 train.py",
        "stragglers",
    ),
    TourStop(
        "swiftdiffusion",
        "Every image request brings its own add-ons.",
        {
            "domain": "serving",
            "verb": "compare",
            "designs": ["diffusers", "static", "nirvana", "swiftdiffusion", "takeup"],
            "rates_per_s": [0.25, 0.5, 1.0],
            "num_requests": 600,
        },
        Measure(
            "per image, 0.5 requests per second on 8 GPUs", "takeup", "mean", " s", "design", 0, {"rate": 0.5}, digits=1
        ),
        "Requests with different LoRAs and ControlNets share the steps of one batch. Where GPUs are idle (0.25 "
        "requests per second) swiftdiffusion is faster, 2.7 s instead of 6.7 s, because it splits one image over "
        "several GPUs; it makes half as many images with a GPU, and its queue grows from 0.5 per second on.",
        "takeup serve MODEL --adapters FOLDER",
        "serve",
    ),
    TourStop(
        "instgenie",
        "Edits recompute everything to change a tenth.",
        {"domain": "papers", "verb": "reproduce", "paper": "instgenie"},
        Measure(
            "per edit in the mean, all sizes of masks, eight workers",
            "earliest_finish",
            "mean",
            " s",
            label="route",
            table=2,
            digits=1,
        ),
        "Only the masked part is computed; cached activations of the rest are loaded while blocks compute. The "
        "chart compares ways to route edits to workers, in simulated time. The first edit of an image computes "
        "all of it, and with masks of half of the image there is little to gain.",
        'takeup serving edit photo.png mask.png "a red hat" --templates kept',
        "edit",
    ),
)

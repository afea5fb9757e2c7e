"""The cluster commands from the outside: help, JSON, files, and one sentence for everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Run, assert_one_sentence, report_of, rows_of
from takeup.cluster.commands import cluster

H800 = ("--pool", "H800")
HEADER = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
NODES = "gpu_model,gpu_capacity_num,cpu_num,node_name\nA100,8,128,n0\nA100,8,128,n1\nH800,8,192,n2\n"


def write_trace(*rows: str, nodes: str = NODES) -> None:
    Path("job_info_df.csv").write_text(HEADER + "".join(f"{row}\n" for row in rows))
    Path("node_info_df.csv").write_text(nodes)


GOOD = tuple(
    f"j{hour},org-{hour % 3},A100,8,{1 + hour % 8},1,{3600 * hour},{5000 + 100 * hour},{'Spot' if hour % 3 else 'HP'}"
    for hour in range(60)
)


# Help and reports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", sorted(cluster.commands))
def test_every_verb_explains_itself(run: Run, verb: str) -> None:
    outcome = run("cluster", verb, "--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: takeup cluster {verb} ")
    assert "--json" in outcome.out


WITH_REPORT = [
    ("simulate", "gfs", *H800),
    ("simulate", "gfs_published", "--model", "last_week_peak", "--no-feedback", "--probability", "0.8", *H800),
    ("compare", "fifo,kube,gfs", "--to-day", "3", "--seed", "2"),
    ("compare", "fifo,gfs", "--workload", "a100_2296", "--days", "3", "--scale", "0.1", "--from-day", "1"),
    ("offer", "--gpus", "4", "--at-day", "2", *H800),
    ("benefit", "gfs", "--against", "slurm", "--price", "2", "--high-price", "3", "--to-day", "3", *H800),
    ("forecast", "persistence,last_week_peak", "--hours", "2", "--probability", "0.8"),
]


@pytest.mark.parametrize("arguments", WITH_REPORT, ids=" ".join)
def test_every_verb_prints_a_report_and_nothing_else(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run("cluster", *arguments, "--json", "--quiet")
    report = report_of(outcome)

    assert outcome.err == ""
    assert report.domain == "cluster"
    assert report.tables[0].rows
    assert list(Path.cwd().iterdir()) == []


def test_a_report_is_run_again_with_the_same_numbers(run: Run) -> None:
    run("cluster", "compare", "fifo,gfs", *H800, "--out", "here", "--quiet")
    again = run("rerun", "here/report.json", "--quiet")

    assert again.code == 0
    assert again.err == "the same numbers as in here/report.json\n"


def test_comparing_draws_the_evictions(run: Run) -> None:
    outcome = run("cluster", "compare", "fifo,yarn_cs,gfs", "--to-day", "3", "--quiet")

    assert outcome.code == 0
    assert outcome.out.startswith("Cluster: fifo, yarn_cs, gfs on small\n")
    assert outcome.err == f"wrote {Path('takeup-out') / 'spot-evictions.png'}\n"


def test_prices_by_pool_are_shown(run: Run) -> None:
    prices = ("--price", "A100-SXM4-80GB=1.2", "--price", "H800=2")
    rows = rows_of(run("cluster", "benefit", *prices, "--to-day", "2", "--json", "--quiet"))

    assert [row["spot price"] for row in rows] == [1.2, 2.0, None]


# Traces ---------------------------------------------------------------------------------------------------------------


def test_a_trace_is_recognised_and_what_it_left_out_is_counted(run: Run) -> None:
    bad = (
        "b0,org,A100,8,,1,10,100,HP",
        "b1,org,A100,8,-2,1,10,100,HP",
        "b2,org,A100,8,1,1,10,nan,HP",
        "b3,org,A100,8,1,1,10,inf,HP",
        "b4,org,B200,8,1,1,10,100,HP",
        "b5,org,A100,8,1,1,-5,100,HP",
        "b6,org,A100,8,8,9,10,100,HP",
        "b7,org,A100,8,1,1,5,100,Free",
    )
    write_trace(*GOOD, *bad)
    report = report_of(run("cluster", "compare", "fifo,gfs", "--trace", "job_info_df.csv", "--json", "--quiet"))
    notes = " ".join(report.notes)

    assert "61 jobs" in report.notes[0]  # the one that is too large is counted
    assert "7 of 68 rows were skipped" in notes
    for words in (
        "gpu_request is missing or not a finite number",
        "duration is missing or not a finite number",
        "gpu_request is not above 0",
        "submit_time is not at least 0",
        "no node has this GPU model",
        "job_type is neither HP nor Spot",
        "1 jobs are larger than their whole pool",
        "rows were not in order of submission",
    ):
        assert words in notes


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("b,org,A100,8,,1,10,100,HP", ("line 62", "gpu_request")),
        ("b,org,A100,8,x,1,10,100,HP", ("line 62", "gpu_request")),
        ("b,org,A100,8,1,1,10,-1,HP", ("line 62", "duration")),
        ("b,org,A100,8,1,1,10,inf,HP", ("line 62", "duration")),
        ("b,org,A100,8,1.5,1,10,10,HP", ("line 62", "not a whole number")),
        ("b,org,B200,8,1,1,10,100,HP", ("'B200'", "list their nodes")),
    ],
)
def test_a_strict_reading_names_the_row(run: Run, row: str, words: tuple[str, ...]) -> None:
    write_trace(*GOOD, row)
    outcome = run("cluster", "simulate", "gfs", "--trace", "job_info_df.csv", "--strict")

    assert_one_sentence(outcome, *words)


def test_a_trace_without_its_nodes_or_without_columns_is_one_sentence(run: Run) -> None:
    write_trace(*GOOD)
    Path("node_info_df.csv").rename("elsewhere.csv")
    Path("odd.csv").write_text("a,b\n1,2\n")
    Path("empty.csv").write_text("")

    assert_one_sentence(run("cluster", "simulate", "--trace", "job_info_df.csv"), "list of nodes", "node_info_df.csv")
    assert run("cluster", "simulate", "--trace", "job_info_df.csv", "--nodes", "elsewhere.csv", "--quiet").code == 0
    assert_one_sentence(run("cluster", "simulate", "--trace", "odd.csv"), "odd.csv", "no column for")
    assert_one_sentence(run("cluster", "simulate", "--trace", "empty.csv"), "empty.csv")
    assert_one_sentence(run("cluster", "simulate", "--trace", "nowhere.csv"), "nowhere.csv")


def test_a_pool_without_jobs_is_one_sentence(run: Run) -> None:
    write_trace(*GOOD)

    assert_one_sentence(run("cluster", "simulate", "--trace", "job_info_df.csv", *H800), "has no job in this window")


def test_a_trace_without_labels_says_who_became_spot(run: Run) -> None:
    rows = "".join(
        f"{600 * number},{3600},{1 + number % 4},{'batch' if number % 2 else 'web'}\n" for number in range(40)
    )
    Path("philly.csv").write_text(f"submit_time,duration,num_gpus,vc\n{rows}")
    by_name = report_of(
        run("cluster", "simulate", "--trace", "philly.csv", "--spot-organisation", "batch", "--json", "--quiet")
    )
    by_coin = report_of(run("cluster", "simulate", "--trace", "philly.csv", "--spot-share", "0.5", "--json", "--quiet"))

    assert "40 jobs, 20 of them spot" in by_name.notes[0]
    assert any("jobs of batch are spot" in note for note in by_name.notes)
    assert any("spot with probability 0.5, seed 1" in note for note in by_coin.notes)


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simulate", "gsf"), "no cluster policy 'gsf'; did you mean 'gfs'?"),
        (("compare", "gfs,"), "no cluster policy ''"),
        (("simulate", "--workload", "smal"), "no cluster workload 'smal'; did you mean 'small'?"),
        (("simulate", "--pool", "H80"), "did you mean 'H800'?"),
        (("simulate", "--model", "oracle"), "no forecast model 'oracle'"),
        (("simulate", "--probability", "1.5"), "--probability is 1.5"),
        (("simulate", "--seed", "-1"), "the seed is -1"),
        (("simulate", "--scale", "-1"), "--scale is -1.0"),
        (("simulate", "--days", "0"), "--days is 0"),
        (("simulate", "--from-day", "5", "--to-day", "4"), "is empty; begin earlier"),
        (("simulate", "--workload", "small", "--trace", "x.csv"), "and not both"),
        (("offer", "gfs,fifo", *H800), "'offer' takes one policy"),
        (("offer",), "choose one with '--pool'"),
        (("offer", "--gpus", "0", *H800), "--gpus is 0"),
        (("offer", "--gpus", "999", *H800), "ask for less"),
        (("offer", "fifo", *H800), "makes no promises"),
        (("benefit",), "has no price"),
        (("benefit", "--price", "cheap"), "'cheap' is no price"),
        (("benefit", "--price", "B200=1"), "prices a pool that is not there"),
        (("forecast", "oracle"), "no forecast model 'oracle'"),
        (("forecast", "--hours", "99"), "--hours is 99"),
        (("forecast", "--demand", "nowhere.csv"), "nowhere.csv"),
        (("run", "gfs", "--engine", "slrum"), "no cluster engine 'slrum'; did you mean 'slurm'?"),
        (("run", "gfs", "--engine", "slurm"), "name a file with '--journal'"),
        (("run", "gfs", "--engine", "kubernetes", "--conf", "nowhere", "--dry-run"), "nowhere"),
        (("run", "gfs"), "'run' needs an engine, slurm or kubernetes; 'simulate' is for jobs in virtual time"),
        (("run", "gfs,fifo", "--engine", "slurm"), "'run' takes one policy"),
        (("run", "gfs", "--engine", "slurm", "--period-s", "0"), "--period-s is 0.0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_sentence(run: Run, arguments: tuple[str, ...], words: str) -> None:
    assert_one_sentence(run("cluster", *arguments), words)


def test_a_slurm_that_does_not_answer_is_an_error_that_says_so(run: Run) -> None:
    Path("slurm.conf").write_text("ClusterName=nobody\nSlurmctldHost=nowhere(127.0.0.1)\nSlurmctldPort=1\n")
    outcome = run(
        "cluster", "run", "gfs", "--engine", "slurm", "--conf", "slurm.conf", "--dry-run", "--for-s", "0", "--quiet"
    )

    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(("error: engine 'slurm' needs the program", "error: not one of 1 rounds went well"))


def test_an_api_server_that_does_not_answer_is_an_error_that_says_so(run: Run) -> None:
    Path("kubeconfig").write_text(
        '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],'
        ' "users": [{"name": "u", "user": {}}],'
        ' "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}]}'
    )
    arguments = ("run", "gfs", "--engine", "kubernetes", "--conf", "kubeconfig", "--dry-run", "--for-s", "0", "--quiet")
    outcome = run("cluster", *arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")

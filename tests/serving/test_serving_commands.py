"""`takeup serving simulate` and `compare`, as a person calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Run, assert_one_sentence, report_of, rows_of
from takeup.core.report import Report
from takeup.errors import BadScenario
from takeup.serving.simulate.designs import DESIGNS, design_of

SMALL = ("--requests", 120, "--steps", 20, "--quiet")


def rows_by_design(report: Report, table: int) -> dict[object, dict[str, object]]:
    names = [column.name for column in report.tables[table].columns]
    return {row[1]: dict(zip(names, row, strict=True)) for row in report.tables[table].rows}


def test_one_design_is_simulated_and_drawn(run: Run, tmp_path: Path) -> None:
    outcome = run("serving", "simulate", "takeup", *SMALL)

    assert outcome.code == 0
    assert "Latency of requests" in outcome.out
    assert (tmp_path / "takeup-out" / "latency.png").stat().st_size > 1000


def test_designs_are_compared_on_the_same_requests(run: Run) -> None:
    report = report_of(run("serving", "compare", "--json", "--rates", "0.5,1", *SMALL))

    assert len(report.tables[0].rows) == 2 * len(DESIGNS)
    assert {row["design"] for row in report.series[0].rows} == set(DESIGNS)
    feels = rows_by_design(report, 0)
    assert all(row["done"] == 100.0 for row in feels.values())
    assert float(str(feels["takeup"]["p95"])) < float(str(feels["diffusers"]["p95"]))
    does = rows_by_design(report, 1)
    assert float(str(does["takeup"]["images"])) > float(str(does["swiftdiffusion"]["images"]))
    assert float(str(does["takeup"]["loads"])) < float(str(does["diffusers"]["loads"]))


def test_a_report_is_run_again_with_the_same_numbers(run: Run) -> None:
    run("serving", "simulate", "swiftdiffusion", "--gpus", 16, "--out", "first", *SMALL)
    again = run("rerun", "first/report.json")

    assert again.code == 0
    assert "the same numbers" in again.err


def test_a_scenario_file_does_as_well(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        'domain = "serving"\nverb = "simulate"\nworkload = "poisson"\nnum_requests = 40\nrates_per_s = [0.2]\n'
    )

    assert rows_of(run("rerun", "x.toml", "--json", "--quiet"))[0]["done"] == 100.0


def test_limits_and_deadlines_refuse_and_end_requests(run: Run) -> None:
    crowded = ("serving", "simulate", "diffusers", "--json", "--rate", 20, "--gpus", 1, *SMALL)
    full = rows_of(run(*crowded, "--max-waiting", 2))[0]
    late = rows_of(run(*crowded, "--deadline-s", 30))[0]
    careful = rows_of(run(*crowded, "--deadline-s", 30, "--in-time"))[0]

    assert float(str(full["done"])) < 50
    assert float(str(late["done"])) < 50
    assert float(str(late["done"])) <= float(str(careful["done"])) < 50


def test_measured_costs_change_the_latency(run: Run, tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text("step = [[2, 1.0], [4, 1.0]]\n")
    options = ("serving", "simulate", "takeup", "--json", "--workload", "poisson", "--rate", 0.001, *SMALL)

    assert rows_of(run(*options, "--costs", "costs.toml"))[0]["p50"] == pytest.approx(20.0)
    assert rows_of(run(*options))[0]["p50"] == pytest.approx(20 * 2.88 / 50)


def test_the_trace_is_read_from_its_two_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(
        "gmt_create,num_images_per_prompt,num_inference_steps,checkpoint_model_version_id,num_lora\n"
        "2024-11-15 16:00:00,1,30,b,1\n2024-11-15 16:00:30,1,30,b,1\n"
    )
    (tmp_path / "loras.csv").write_text(
        "checkpoint_model_version_id,lora_args\nb,\"[{'modelVersionId': 'x', 'scale': 1.0}]\"\n"
    )
    outcome = run(
        *("serving", "simulate", "diffusers", "--json", "--workload", "gentd26", "--trace", "times.csv"),
        *("--loras", "loras.csv", "--rate", 0.01, "--quiet"),
    )

    assert rows_by_design(report_of(outcome), 1)["diffusers"]["loads"] == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("simulate", "takeupp"), ("did you mean 'takeup'",)),
        (("simulate", "takeup,swiftdiffusion"), ("several designs", "compare")),
        (("simulate", "--rate", "1,2"), ("several rates", "compare")),
        (("simulate", "--eviction", "lercc"), ("did you mean 'lerc'",)),
        (("simulate", "--route", "affinty"), ("did you mean 'affinity'",)),
        (("simulate", "--order", "inorder"), ("did you mean 'in_order'",)),
        (("simulate", "--workload", "gentd26"), ("needs both 'trace' and 'loras'",)),
        (("simulate", "--trace", "x.csv"), ("needs both 'trace' and 'loras'",)),
        (("simulate", "--rate", "0"), ("greater than 0",)),
        (("simulate", "swiftdiffusion", "--gpus", 4), ("needs 8 GPUs, found 4",)),
        (("simulate", "--costs", "none.toml"), ("cannot read costs none.toml",)),
        (("simulate", "--cache", 0), ("cache",)),
        (("compare", ""), ("design",)),
    ],
)
def test_mistakes_are_answered_in_a_sentence(run: Run, options: tuple[object, ...], words: tuple[str, ...]) -> None:
    assert_one_sentence(run("serving", *options), *words)


def test_an_unknown_verb_is_answered_with_those_there_are(run: Run) -> None:
    assert "No such command 'simulat'" in run("serving", "simulat").err
    assert "simulate" in run("serving", "--help").out


@pytest.mark.parametrize("text", ["step = 3\n", "step = [[2, 0.0]]\n", "control = [[2, 1.0]]\n", "step = [[4]]\n", "x"])
def test_costs_that_cannot_be_used_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)

    with pytest.raises(BadScenario, match=r"step"):
        design_of("takeup", costs=str(path))


def test_only_designs_on_one_gpu_take_measured_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text("step = [[2, 1.0]]\ncontrol = [[2, 0.5]]\n")

    assert design_of("swiftdiffusion", costs=str(path)) == DESIGNS["swiftdiffusion"]
    assert design_of("static", costs=str(path)).control is not None
    assert design_of("static", max_running=3).max_running == 3
    assert design_of("diffusers", max_running=3).max_running == 1

"""What a server counts, as a design of the simulator: pages of metrics by hand, and what is missing on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Run

pytest.importorskip("prometheus_client", reason="needs the package 'prometheus_client': pip install 'takeup[web]'")

from takeup.errors import BadScenario
from takeup.serving.simulate.designs import counts_of, design_of, measured_design

PAGE = """# HELP takeup_serving_turns_total Turns of the step loop.
# TYPE takeup_serving_turns_total counter
takeup_serving_turns_total{company="alone",rows="2"} 10.0
takeup_serving_turns_total{company="alone",rows="4"} 20.0
takeup_serving_turns_total{company="shared",rows="4"} 5.0
# HELP takeup_serving_turn_seconds_total Seconds of these turns.
# TYPE takeup_serving_turn_seconds_total counter
takeup_serving_turn_seconds_total{company="alone",rows="2"} 1.0
takeup_serving_turn_seconds_total{company="alone",rows="4"} 3.0
takeup_serving_turn_seconds_total{company="shared",rows="4"} 1.25
# HELP takeup_serving_beside_seconds_total Processor time during turns.
# TYPE takeup_serving_beside_seconds_total counter
takeup_serving_beside_seconds_total 0.625
# HELP takeup_serving_prepare_calls_total Images that were prepared.
# TYPE takeup_serving_prepare_calls_total counter
takeup_serving_prepare_calls_total 8.0
# HELP takeup_serving_prepare_seconds_total Processor time of that.
# TYPE takeup_serving_prepare_seconds_total counter
takeup_serving_prepare_seconds_total 0.4
# HELP takeup_serving_waiting Images that wait for their turn.
# TYPE takeup_serving_waiting gauge
takeup_serving_waiting 3.0
# HELP python_info A page may have others on it.
# TYPE python_info gauge
python_info{version="3"} 1.0
"""


def test_steps_cost_what_turns_take_alone() -> None:
    design = measured_design(counts_of(PAGE), max_running=4)

    assert design.step.points == ((2, 0.1), (4, 0.15))
    assert design.max_running == 4


def test_what_shared_turns_take_longer_is_how_much_they_are_in_each_others_way() -> None:
    """Five turns took 1.25 s and would have taken 0.75 s alone, beside 0.625 s of work."""
    design = measured_design(counts_of(PAGE))

    assert design.contention_share == pytest.approx(0.5 / 0.625)


def test_work_around_the_steps_is_counted_for_each_image() -> None:
    design = measured_design(counts_of(PAGE))

    assert design.before_s == pytest.approx(0.4 / 8)
    assert design.after_s == 0  # nothing was finished yet


def test_two_pages_tell_what_happened_between_them() -> None:
    counts = counts_of(PAGE)
    counts.subtract(counts_of(PAGE.replace('"2"} 10.0', '"2"} 4.0').replace('"2"} 1.0', '"2"} 0.7')))

    ((rows, seconds),) = measured_design(counts).step.points
    assert rows == 2
    assert seconds == pytest.approx(0.3 / 6)


def test_sizes_that_were_hardly_seen_are_left_to_the_line_between_the_others() -> None:
    few = PAGE.replace('company="alone",rows="2"} 10.0', 'company="alone",rows="2"} 4.0')

    assert measured_design(counts_of(few)).step.points == ((4, 0.15),)


def test_faster_in_company_is_no_contention() -> None:
    lucky = PAGE.replace('company="shared",rows="4"} 1.25', 'company="shared",rows="4"} 0.7')

    assert measured_design(counts_of(lucky)).contention_share == 0


@pytest.mark.parametrize("page", ["", "# HELP nothing Of ours.\n# TYPE nothing counter\nnothing_total 1.0\n"])
def test_a_server_that_made_no_image_is_told_so(page: str) -> None:
    with pytest.raises(BadScenario, match="make some images first"):
        measured_design(counts_of(page))


def test_a_page_of_metrics_gives_a_design_its_costs(tmp_path: Path) -> None:
    page = tmp_path / "metrics"
    page.write_text(PAGE)
    design = design_of("takeup", costs=str(page))

    assert design.name == "takeup"
    assert design.step.points == ((2, 0.1), (4, 0.15))
    assert design.before_s == pytest.approx(0.05)
    assert design.contention_share == pytest.approx(0.8)
    assert design.merge_s > 0  # the rest is that of the design


def test_the_page_of_a_server_can_be_simulated(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "metrics"
    page.write_text(PAGE)
    options = ("serving", "simulate", "takeup", "--workload", "poisson", "--requests", "20", "--json")
    measured, usual = run(*options, "--costs", page), run(*options)

    assert (measured.code, usual.code) == (0, 0)
    assert measured.out != usual.out


def test_a_page_without_turns_is_a_sentence(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "metrics"
    page.write_text("# HELP nothing Of ours.\n# TYPE nothing counter\nnothing_total 1.0\n")
    outcome = run("serving", "simulate", "takeup", "--costs", page)

    assert outcome.code == 2
    assert "make some images first" in outcome.err

"""The cloudlet engine for real: processes, sockets and cores. Nothing here depends on how fast the machine is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edge.offloads import four_devices
from takeup.edge.engines.cloudlet import engine as priorities
from takeup.edge.engines.cloudlet.engine import TOKEN_BYTES, CloudletEngine, CloudletSite, CoreProcess
from takeup.edge.engines.cloudlet.links import ChildProcess, NamespaceLinks, open_links
from takeup.edge.engines.cloudlet.plan import CloudletJob, DispatchRule, make_plan
from takeup.edge.results import Played, PlayedTask
from takeup.edge.traces.generators import paper_setting
from takeup.edge.validate import first_violation
from takeup.errors import MissingEngine
from takeup.papers.edge.joint import Joint, MinimumGroups

pytestmark = pytest.mark.engine

TOKEN = "a" * TOKEN_BYTES
LIMIT_S = 60.0  # of what takes a moment


@pytest.fixture(params=["user-space", "namespaces"], scope="module")
def link(request: pytest.FixtureRequest) -> str:
    """Both links; skips where the kernel or the user cannot."""
    if request.param == "namespaces":
        try:
            with NamespaceLinks(()):
                pass
        except MissingEngine as reason:
            pytest.skip(str(reason))
    return str(request.param)


@pytest.fixture(scope="module")
def kept(link: str) -> Played:
    """A plan with plenty of time, played; whatever the machine does meanwhile, nothing is late."""
    return CloudletEngine(link=link).play(*four_devices(deadline_s=60.0))


def starts(played: Played) -> list[PlayedTask]:
    """The tasks in the order in which they began."""
    return sorted(played.tasks, key=lambda task: task.start_s or 0.0)


def overlaps(played: Played) -> bool:
    """Whether two tasks ran on the same core at the same time."""
    ordered = starts(played)
    pairs = [(one, other) for n, one in enumerate(ordered) for other in ordered[n + 1 :] if one.core == other.core]
    return any((one.end_s or 0.0) > (other.start_s or 0.0) for one, other in pairs)


def test_a_plan_with_plenty_of_time_is_kept(kept: Played, link: str) -> None:
    assert (kept.link, kept.num_met, kept.num_late, kept.num_failed) == (link, 3, 0, 0)
    assert [task.num_bytes for task in kept.tasks] == [10_000] * 3
    assert not overlaps(kept)
    for task in kept.tasks:
        assert task.upload_s is not None
        assert task.start_s is not None
        assert max(task.upload_s, task.planned_start_s) <= task.start_s


def test_bytes_come_no_faster_than_the_allocated_rate(kept: Played) -> None:
    assert all(task.upload_s is not None and task.upload_s > 0.8 * task.planned_upload_s for task in kept.tasks)


@pytest.mark.parametrize("dispatch", ["early", "edf"])
def test_tasks_may_begin_before_their_planned_start(dispatch: DispatchRule) -> None:
    instance, allocation = four_devices(deadline_s=60.0)
    waiting = replace(allocation, start_s=np.array([40.0, 41.0, np.nan, 42.0]))

    played = CloudletEngine(link="user-space", dispatch=dispatch).play(instance, waiting)

    assert played.num_met == 3
    assert all(task.start_s is not None and task.start_s < 40.0 for task in played.tasks)
    assert not overlaps(played)


def test_a_slower_play_reports_times_of_the_instance() -> None:
    played = CloudletEngine(link="user-space", slowdown=2.0).play(*four_devices())

    for task in played.tasks:
        assert task.end_s is not None
        assert task.end_s >= task.planned_end_s  # it cannot be quicker than the CPU time it takes


def test_a_plan_that_ignores_the_cpu_is_late_for_real() -> None:
    instance, allocation = four_devices(deadline_s=0.3, run_s=0.2)
    overlapping = replace(allocation, start_s=np.array([0.06, 0.06, np.nan, 0.06]))

    played = CloudletEngine(link="user-space", dispatch="edf").play(instance, overlapping)

    assert played.num_failed == 0
    assert played.num_late >= 2  # by its deadline a core has time for one of the three
    assert not overlaps(played)


def test_the_radio_alone_promises_more_than_the_site_can_do() -> None:
    instance = paper_setting(np.random.default_rng(0), 8, edge_hz=400e6)
    promised = MinimumGroups().allocate(instance).allocation
    busy_s = float(instance.run_s[promised.offloads].sum())
    last_s = float(instance.deadlines_s[promised.offloads].max())

    played = CloudletEngine(link="user-space", dispatch="edf").play(instance, promised)

    assert first_violation(instance, promised, ignores_cpu=True) is None
    assert busy_s > last_s + played.tolerance_s
    assert played.num_late >= 1


def test_a_joint_plan_of_the_paper_is_played() -> None:
    instance = paper_setting(np.random.default_rng(0), 8)
    allocation = Joint().allocate(instance).allocation

    played = CloudletEngine(link="user-space", dispatch="early", tolerance_s=60.0).play(instance, allocation)

    assert played.num_met == allocation.num_accepted
    assert not overlaps(played)


def test_a_broken_link_fails_its_own_task_and_no_other(link: str) -> None:
    played = CloudletEngine(link=link).play(*four_devices(deadline_s=60.0), breaks={1: 0.5})

    assert [bool(task.failure) for task in played.tasks] == [False, True, False]
    assert played.tasks[1].failure == "its link broke after 5000 of 10000 bytes"
    assert (played.tasks[1].upload_s, played.tasks[1].end_s) == (None, None)
    assert played.num_met == 2


def test_nobody_offloads_and_the_site_stays_empty() -> None:
    instance, allocation = four_devices()

    played = CloudletEngine(link="user-space").play(instance, replace(allocation, offloads=np.zeros(4, np.bool_)))

    assert played.tasks == ()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_site_of_two_cores_has_two_that_were_measured() -> None:
    instance, allocation = four_devices(deadline_s=60.0, run_s=0.1)
    together = replace(allocation, start_s=np.array([0.1, 0.1, np.nan, 0.2]))

    played = CloudletEngine(link="user-space").play(replace(instance, num_cores=2), together)

    assert played.num_met == 3
    assert {task.core for task in played.tasks} <= {0, 1}
    assert not overlaps(played)


def test_auto_takes_the_link_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    plan = make_plan(*four_devices(), slowdown=1.0)

    with open_links("auto", plan) as links:
        assert links.name == "user-space"
    with pytest.raises(MissingEngine, match="install iproute2"), open_links("namespaces", plan):
        pass


# Everything ends


def test_no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ChildProcess] = []
    begin = ChildProcess.__init__

    def noted(process: ChildProcess, program: str, *arguments: str) -> None:
        started.append(process)
        begin(process, program, *arguments)

    monkeypatch.setattr(ChildProcess, "__init__", noted)
    CloudletEngine(link="user-space").play(*four_devices(), breaks={0: 0.1})

    assert len(started) == 4
    assert all(process.is_gone() for process in started)


def test_a_killed_engine_leaves_no_process_behind() -> None:
    program = (
        "from edge.offloads import four_devices\n"
        "from takeup.edge.engines.cloudlet.engine import CloudletEngine\n"
        "CloudletEngine(link='user-space', slowdown=50.0).play(*four_devices())\n"
    )
    tests = str(Path(__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": tests})
    started = _children_once_there(parent.pid, 4)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    assert len(started) == 4
    assert _gone_within(started, LIMIT_S)


def _children_once_there(pid: int, count: int) -> set[int]:
    children: set[int] = set()
    until_s = time.monotonic() + LIMIT_S
    while len(children) < count and time.monotonic() < until_s:
        time.sleep(0.02)
        children = {int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent_of(path) == pid}
    return children


def _parent_of(path: Path) -> int | None:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _gone_within(pids: set[int], limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    while any(_runs(pid) for pid in pids) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# The site, with strangers, silence and stopped cores


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def core() -> Iterator[ChildProcess]:
    made = ChildProcess("core.py")
    made.hear()
    yield made
    made.close()


@pytest.fixture
def device() -> Iterator[ChildProcess]:
    made = ChildProcess("device.py")
    yield made
    made.close()


def one_job(num_bytes: int = 5) -> CloudletJob:
    return CloudletJob(7, num_bytes, 0.0, 0.01, 0.0, 0.001, 1.0)


def test_a_stranger_is_hung_up_on(listener: socket.socket, device: ChildProcess) -> None:
    site = CloudletSite(listener, [one_job()], [TOKEN], "edf")
    heard: list[bytes] = []
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as stranger:

        def listen() -> None:
            heard.append(stranger.recv(1))
            device.tell("not an order")  # so it ends, and nobody is waited for any more

        stranger.sendall(b"b" * TOKEN_BYTES)
        listening = threading.Thread(target=listen)
        listening.start()
        site.gather([device], LIMIT_S)
        listening.join()

    assert heard == [b""]
    assert site.records[0].failure == "its device did not connect"
    site.close()


def test_a_device_that_says_its_token_in_two_parts_is_known(listener: socket.socket, device: ChildProcess) -> None:
    site = CloudletSite(listener, [one_job()], [TOKEN], "edf")
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller.sendall(TOKEN[:9].encode())
        later = threading.Timer(0.1, caller.sendall, [TOKEN[9:].encode()])
        later.start()
        site.gather([device], LIMIT_S)
        later.join()
    site.close()

    assert site.records[0].connected


def test_a_process_that_ended_is_not_waited_for(listener: socket.socket, device: ChildProcess) -> None:
    site = CloudletSite(listener, [one_job()], [TOKEN], "edf")
    device.tell("not an order")
    begin_s = time.monotonic()
    site.gather([device], 300)
    site.close()

    assert time.monotonic() - begin_s < 200
    assert site.records[0].failure == "its device did not connect"


def test_a_silent_device_fails_at_the_limit(listener: socket.socket, device: ChildProcess, core: ChildProcess) -> None:
    site = CloudletSite(listener, [one_job()], [TOKEN], "edf")
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as caller:
        caller.sendall(TOKEN.encode() + b"abc")
        site.gather([device], LIMIT_S)
        site._loop(lambda: site.records[0].num_received == 3, time.monotonic() + LIMIT_S)
        site.run([core], time.monotonic(), 0.3)
    site.close()

    assert site.records[0].num_received == 3
    assert site.records[0].failure == "it was not done after 0.3 s"


def test_no_more_bytes_are_read_than_a_device_has(
    listener: socket.socket, device: ChildProcess, core: ChildProcess
) -> None:
    site = CloudletSite(listener, [one_job()], [TOKEN], "edf")
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as caller:
        caller.sendall(TOKEN.encode() + b"abcde and more")
        site.gather([device], LIMIT_S)
        site.run([core], time.monotonic(), LIMIT_S)
    site.close()

    assert site.records[0].num_received == 5
    assert site.records[0].ended_s is not None


def test_a_job_whose_core_stops_has_failed(listener: socket.socket, device: ChildProcess, core: ChildProcess) -> None:
    core.tell("nonsense")
    site = CloudletSite(listener, [one_job()], [TOKEN], "edf")
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as caller:
        caller.sendall(TOKEN.encode() + b"abcde")
        site.gather([device], LIMIT_S)
        site.run([core], time.monotonic(), LIMIT_S)
    site.close()

    assert site.records[0].failure == "core 0 stopped"


# Priorities


def test_real_time_says_so_where_it_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)

    with pytest.raises(MissingEngine, match="leave out real_time"):
        CloudletEngine(link="user-space", real_time=True).play(*four_devices(deadline_s=60.0))


def test_real_time_is_over_when_the_play_is() -> None:
    before = os.sched_getscheduler(0)
    try:
        with priorities.in_real_time(wanted=True):
            inside = os.sched_getscheduler(0)
    except MissingEngine as reason:
        pytest.skip(str(reason))
    played = CloudletEngine(link="user-space", real_time=True).play(*four_devices(deadline_s=60.0))

    assert inside == os.SCHED_FIFO
    assert os.sched_getscheduler(0) == before
    assert played.num_met == 3


# Whom the site gives a job


class Silent:
    """A process that does nothing."""

    def tell(self, line: str) -> None:
        self.told = line


def test_a_job_is_given_to_the_core_that_will_be_free_first_and_not_kept_behind_a_long_one(
    listener: socket.socket,
) -> None:
    runs_s = [10.0, 1.0, 1.0, 1.0]
    jobs = [CloudletJob(number, 1, 0.0, 0.1, 1.0 + number, run_s, 99.0) for number, run_s in enumerate(runs_s)]
    site = CloudletSite(listener, jobs, ["a", "b", "c", "d"], "planned")
    site._zero_s, site._cores = 0.0, [CoreProcess(number, cast(ChildProcess, Silent())) for number in range(2)]
    for job in jobs:
        site._queue.complete(job)
    site._dispatch_jobs(0.5)
    site.close()

    assert [[record.job.device for record in core.records] for core in site._cores] == [[0], [1, 2]]

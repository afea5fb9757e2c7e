"""Leader election: one of several schedulers acts, none acts on a lease that may have gone to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.engines.kubernetes.fake_api import FakeApi
from cluster.engines.kubernetes.kube_things import pod
from cluster.engines.kubernetes.kube_worlds import fake_world
from takeup.cluster.engines.kubernetes.client import ApiAccess, Client
from takeup.cluster.engines.kubernetes.lease import ACTS_S, DURATION_S, RENEW_S, Lease, StandBy


class Watch:
    """A monotonic clock that is set by hand."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as made:
        yield made


Make = Callable[..., Lease]


@pytest.fixture
def lease(api: FakeApi) -> Iterator[Make]:
    """Makes leases of one server, each with a client of its own."""
    made: list[Lease] = []

    def make(identity: str, watch: Watch | None = None) -> Lease:
        made.append(Lease(api.client(), identity=identity, monotonic=watch or Watch()))
        return made[-1]

    yield make
    for each in made:
        each.client.close()


def test_the_first_holds_the_lease_and_the_second_stands_by(lease: Make) -> None:
    first, second = lease("first"), lease("second")
    first.keep()
    first.require()

    with pytest.raises(StandBy, match="first holds the lease"):
        second.keep()
    with pytest.raises(StandBy):
        second.require()


def test_a_lease_that_is_not_renewed_goes_to_another_and_the_old_holder_has_stopped_before(lease: Make) -> None:
    ours, theirs = Watch(), Watch()
    first, second = lease("first", ours), lease("second", theirs)
    first.keep()
    with pytest.raises(StandBy):
        second.keep()  # sees it for the first time now
    theirs.now_s += DURATION_S - 1
    with pytest.raises(StandBy):
        second.keep()
    theirs.now_s += 1
    second.keep()
    ours.now_s += ACTS_S + 0.1

    second.require()
    with pytest.raises(StandBy, match="not renewed in time"):
        first.require()
    with pytest.raises(StandBy, match="second holds the lease"):
        first.keep()


def test_a_request_begun_at_the_last_moment_has_ended_before_another_holds_the_lease() -> None:
    assert ACTS_S + Client(ApiAccess("http://127.0.0.1")).timeout_s < DURATION_S
    assert 2 * RENEW_S <= ACTS_S


def test_a_holder_that_renews_keeps_the_lease(lease: Make) -> None:
    watch = Watch()
    first, second = lease("first", watch), lease("second", watch)
    for _ in range(20):
        first.keep()
        with pytest.raises(StandBy):
            second.keep()
        watch.now_s += DURATION_S / 3

    first.keep()
    first.require()


def test_of_two_that_take_a_free_lease_at_once_one_is_refused(lease: Make) -> None:
    lease("before").keep()
    first, second = lease("first"), lease("second")
    found = first.client.get(first._path)
    first._write(found)

    second.client = _Remembers(second.client.access, {**found, "spec": {}})

    with pytest.raises(StandBy, match="at this moment"):
        second.keep()


class _Remembers(Client):
    """A client whose reads are old."""

    def __init__(self, access: object, found: dict[str, object]) -> None:
        super().__init__(access)  # type: ignore[arg-type]
        self.found = found

    def get(self, path: str, **query: object) -> dict[str, object]:
        return self.found


def test_a_lease_that_is_given_back_is_taken_at_once(lease: Make) -> None:
    first, second = lease("first"), lease("second")
    first.keep()
    first.release()

    second.keep()
    with pytest.raises(StandBy):
        first.require()


def test_an_engine_that_does_not_hold_the_lease_sees_and_does_nothing() -> None:
    with fake_world() as world:
        world.create([pod("a")])
        world.settle()
        engine, watch = world.engine, Watch()
        engine.elects, engine.lease.monotonic = True, watch
        engine.observe()
        watch.now_s += ACTS_S + 1

        with pytest.raises(StandBy, match="not renewed in time"):
            world.start("a", "n0")
        assert not any(world.places().values())

        assert engine.client is not None
        other = Lease(engine.client, identity="other")
        other._write(other.client.get(other._path))
        watch.now_s += RENEW_S
        with pytest.raises(StandBy, match="other holds the lease"):
            engine.observe()

"""A scheduler at work on a cluster, and mirrors of what is there."""

from __future__ import annotations

import threading

import pytest

from cluster.engines.kubernetes.fake_api import FakeApi
from cluster.engines.kubernetes.kube_labs import lab_client
from cluster.engines.kubernetes.kube_things import PODS, create_classes, create_pods, pod
from cluster.engines.kubernetes.kube_worlds import clear, fake_world
from support.kubernetes_loop import follow
from takeup.cluster.engines.kubernetes import informer as mirror_module
from takeup.cluster.engines.kubernetes.client import Client, Json
from takeup.cluster.engines.kubernetes.informer import Informer, key_of
from takeup.cluster.engines.kubernetes.writer import QuotaStore
from takeup.cluster.model import Quota, Start
from takeup.cluster.policies import find_policy

pytestmark = pytest.mark.usefixtures("compiled")


def mirror_of(client: Client) -> Informer[Json]:
    """A mirror of all pods, once it has tried to list them."""
    changed = threading.Event()
    made: Informer[Json] = Informer(client, "/api/v1/pods", dict, changed.set, 2.0)
    made.start()
    changed.wait(60.0)
    return made


def test_a_scheduler_follows_what_changes_until_it_is_told_to_stop() -> None:
    with fake_world() as world:
        world.create([pod(f"s{number}") for number in range(4)])
        heard = []

        loop = follow(
            world.engine,
            find_policy("gfs"),
            period_s=0.2,
            on_decision=lambda decision, outcome: heard.append((decision, outcome)),
            until=lambda: all(world.places().values()),
        )

        starts = [outcome for decision, outcome in heard if isinstance(decision, Start)]
        assert starts == ["applied"] * 4
        assert loop.counters.num_failed == loop.counters.num_failed_rounds == 0


def test_a_dry_run_follows_and_touches_nothing() -> None:
    with fake_world() as world:
        world.create([pod("a")])
        rounds = iter(range(4))

        loop = follow(
            world.engine, find_policy("gfs"), period_s=0.05, dry_run=True, until=lambda: next(rounds, None) is None
        )

        assert (loop.counters.num_rounds, loop.counters.num_applied) == (4, 0)
        assert world.places() == {"a": ""}


def test_a_mirror_that_is_stopped_hears_no_more() -> None:
    with FakeApi() as api:
        client = api.client()
        mirror = mirror_of(client)
        mirror.stop()
        create_pods(client, [pod("late")])

        assert mirror.objects() == {}
        client.close()


def test_things_are_known_by_namespace_and_name() -> None:
    assert key_of({"metadata": {"namespace": "a", "name": "b"}}) == "a/b"
    assert key_of({"metadata": {"name": "n0"}}) == "n0"


@pytest.mark.engine
def test_a_long_list_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    client = lab_client("admin")
    create_classes(client)
    create_pods(client, [pod(f"p{number}") for number in range(5)])
    monkeypatch.setattr(mirror_module, "PAGE", 2)

    mirror = mirror_of(client)

    assert sorted(mirror.objects()) == [f"default/p{number}" for number in range(5)]
    mirror.stop()
    clear(client)
    client.close()


def test_quotas_are_read_as_they_were_written() -> None:
    with FakeApi() as api:
        store = QuotaStore(api.client())
        quotas = {
            "a100": Quota("a100", {0.5: 64.0, 8.0: 3.5}, None, 0.7),
            "h800": Quota("h800", {float("inf"): float("inf")}),
        }

        assert store.read() == {}
        store.write(quotas)
        store.write(quotas)  # over what is there

        assert store.read() == quotas
        assert [it.coefficient for it in store.read().values()] == [0.7, 1.0]
        store.client.close()


def test_a_quota_that_somebody_broke_is_left_out() -> None:
    with FakeApi() as api:
        store = QuotaStore(api.client())
        store.write({"a100": Quota("a100", {1.0: 8.0})})
        path = "/api/v1/namespaces/takeup/configmaps/takeup-quotas"
        api.answer("PATCH", path, {"data": {"b": "not JSON", "c": "[1]", "d": '{"x": "y"}'}})

        assert set(store.read()) == {"a100"}
        store.client.close()


def test_pods_of_all_namespaces_are_mirrored() -> None:
    with FakeApi() as api:
        client = api.client()
        create_pods(client, [pod("a")])
        client.request("POST", PODS.replace("default", "other"), pod("b"))
        mirror = mirror_of(client)

        assert set(mirror.objects()) == {"default/a", "other/b"}
        mirror.stop()
        client.close()

"""Templates keep what they were given, within a stated error, in files that are whole or not there."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput, OutputFailed
from takeup.serving.editing.templates import disk, store
from takeup.serving.editing.templates import disk as files
from takeup.serving.editing.templates.disk import ALIGNMENT, read_template, write_template
from takeup.serving.editing.templates.packing import BITS, EXACT, PagePacker, error_of, pack, unpack, unpack_page
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.editing.templates.template import (
    PageReader,
    Template,
    TemplateKey,
    TemplateRecorder,
    digest_of,
    weights_digest,
)
from takeup.serving.scheduling.adapters import AdapterLERC, AdapterLRU

MADE = ("unet", "w", "", "euler", 4, 1.0, "5", (32, 32), "float32", "cpu", "sdpa")
KEY = TemplateKey("a", *MADE, image="i", noise="0", libraries="torch", kept="kv")
ALL_KNOWN = torch.ones(4, 4, dtype=torch.bool)
NUM_STEPS = 9


def page(step: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Activations that drift slowly from one image to another."""
    random = torch.Generator().manual_seed(seed)
    first, last = (torch.randn(2, 16, 128, generator=random) for _ in range(2))
    share = (step / NUM_STEPS) ** 1.2 / 2
    return {"0.k": ((1 - share) * first + share * last).to(dtype), "out": (first + share).to(dtype)}


def template(budget: float = 0.0, seed: int = 0, num_steps: int = NUM_STEPS) -> Template:
    recorder = TemplateRecorder(num_steps, ALL_KNOWN, budget)
    for step in range(num_steps):
        recorder.add(page(step, seed))
    assert recorder.is_complete
    return recorder.finish()


def keys(count: int) -> list[TemplateKey]:
    return [replace(KEY, image=str(number)) for number in range(count)]


def store_of(folder: Path | None = None, **room: int) -> TemplateStore:
    return TemplateStore(AdapterLRU, TierCapacities(**room), folder)


def same(ours: Template | None, theirs: Template) -> bool:
    return ours is not None and all(
        torch.equal(PageReader(ours).page(step)[name], kept)
        for step in range(theirs.num_steps)
        for name, kept in PageReader(theirs).page(step).items()
    )


# Keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [field.name for field in fields(TemplateKey)])
def test_a_key_that_differs_in_anything_has_another_name(name: str) -> None:
    usual = getattr(KEY, name)
    other: dict[str, Any] = {name: (64, 32) if isinstance(usual, tuple) else usual + usual if usual else "x"}

    assert replace(KEY, **other).name != KEY.name
    assert replace(KEY).name == KEY.name


def test_other_weights_have_another_digest() -> None:
    weights = {"a": torch.arange(1000.0), "b": torch.zeros(0)}
    changed = {**weights, "a": weights["a"] * 1.001}

    assert weights_digest(weights) == weights_digest(dict(weights))
    assert weights_digest(changed) != weights_digest(weights)
    assert weights_digest({"c": weights["a"], "b": weights["b"]}) != weights_digest(weights)


def test_tensors_of_other_shapes_have_another_digest() -> None:
    assert digest_of(torch.zeros(4)) != digest_of(torch.zeros(2, 2))
    assert digest_of(torch.zeros(4)) != digest_of(torch.zeros(4, dtype=torch.int32))


# Packing ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1e-6, 1.0, 1e4]), st.sampled_from([64, 128, 40]))
def test_eight_bits_are_wrong_by_less_than_a_percent(seed: int, size: float, width: int) -> None:
    tensor = size * torch.randn(2, 8, width, generator=torch.Generator().manual_seed(seed))
    packed = pack(tensor, 8)

    assert unpack(packed).shape == tensor.shape
    assert error_of({"x": unpack(packed)}, {"x": tensor}) < 0.012


@pytest.mark.parametrize(("bits", "error"), [(2, 0.36), (3, 0.2), (4, 0.1), (5, 0.05), (6, 0.03), (8, 0.008)])
def test_each_number_of_bits_has_its_error_and_its_size(bits: int, error: float) -> None:
    tensor = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(1))
    packed = pack(tensor, bits)

    assert error / 2 < error_of({"x": unpack(packed)}, {"x": tensor}) < error
    assert packed.size_bytes == tensor.numel() * bits / 8 + 2 * tensor.numel() / 64


@pytest.mark.parametrize("bits", BITS[:-1])
def test_a_channel_that_is_much_larger_than_the_others_hides_none_of_them(bits: int) -> None:
    tensor = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(1))
    tensor[..., 5] *= 30
    made = unpack(pack(tensor, bits))
    others = torch.arange(128) % 64 != 5

    assert error_of({"x": made}, {"x": tensor}) < 1.3 * error_of(
        {"x": unpack(pack(torch.randn_like(tensor), bits))}, {"x": torch.randn_like(tensor)}
    )
    assert made[..., others].abs().max() > 0


def test_eight_bits_of_zeros_stay_zeros_and_fewer_are_next_to_nothing() -> None:
    zeros = torch.zeros(1, 2, 64)

    assert torch.equal(unpack(pack(zeros, 8)), zeros)
    assert all(unpack(pack(zeros, bits)).abs().max() < 1e-20 for bits in BITS)


def test_widths_that_have_no_rotation_are_packed_all_the_same() -> None:
    tensor = torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(1))

    assert error_of({"x": unpack(pack(tensor, 4))}, {"x": tensor}) < 0.12
    odd = {"x": torch.randn(1, 8, 39, generator=torch.Generator().manual_seed(1))}
    packer = PagePacker(0.2)
    assert packer.add(odd)["x"].bits == 8  # two of 39 do not fit into whole bytes


# Steps ------------------------------------------------------------------------------------------------------------


def packed_all(pages: list[dict[str, torch.Tensor]], budget: float) -> tuple[list[Any], list[dict[str, torch.Tensor]]]:
    """As they are packed, and what is unpacked of them."""
    packer, before = PagePacker(budget), dict[str, torch.Tensor]()
    packed = [packer.add(one) for one in pages]
    unpacked = [before := unpack_page(one, before) for one in packed]
    return packed, unpacked


def test_what_does_not_change_is_kept_once() -> None:
    same_page = page(0)
    packed, unpacked = packed_all([same_page] * 4, 0.05)

    assert [len(one) for one in packed] == [2, 0, 0, 0]
    assert error_of(unpacked[3], same_page) <= 0.05


@pytest.mark.parametrize(("change", "bits"), [(0.1, 2), (0.2, 3), (0.4, 4)])
def test_small_changes_take_few_bits(change: float, bits: int) -> None:
    first, other = page(0), page(0, seed=1)
    second = {name: one + change * other[name] for name, one in first.items()}
    packed, unpacked = packed_all([first, second], 0.05)

    assert {(one.bits, one.is_change) for one in packed[1].values()} == {(bits, True)}
    assert error_of(unpacked[1], second) <= 0.05


def test_another_content_is_no_change() -> None:
    packed, _ = packed_all([page(0), page(0, seed=1)], 0.12)

    assert {(one.bits, one.is_change) for one in packed[1].values()} == {(4, False)}


def test_errors_of_changes_do_not_add_up() -> None:
    pages, random = [page(0)], torch.Generator().manual_seed(3)
    for _ in range(40):
        pages.append({name: one + 0.1 * torch.randn(one.shape, generator=random) for name, one in pages[-1].items()})
    _, unpacked = packed_all(pages, 0.05)

    assert max(error_of(ours, theirs) for ours, theirs in zip(unpacked, pages, strict=True)) <= 0.05


def test_one_token_for_all_is_kept_as_it_is() -> None:
    norms = {"norm": torch.randn(2, 1, 128)}
    packed, unpacked = packed_all([norms, norms], 0.3)

    assert torch.equal(unpacked[1]["norm"], norms["norm"])
    assert packed[0]["norm"].bits == EXACT


def test_pages_can_be_read_in_any_order() -> None:
    kept = template(0.05)
    in_order, jumping = PageReader(kept), PageReader(kept)
    right = [in_order.page(step) for step in range(NUM_STEPS)]

    for step in (3, 3, 7, 0, 8, 1):
        assert all(torch.equal(jumping.page(step)[name], one) for name, one in right[step].items())


def test_without_a_budget_every_bit_is_kept() -> None:
    kept = template()

    assert kept.error == 0.0
    assert all(torch.equal(PageReader(kept).page(step)["0.k"], page(step)["0.k"]) for step in range(NUM_STEPS))
    assert kept.size_bytes == kept.raw_bytes


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.2])
def test_the_stated_error_is_not_exceeded(budget: float) -> None:
    kept = template(budget)
    worst = max(error_of(PageReader(kept).page(step), page(step)) for step in range(NUM_STEPS))

    assert worst <= kept.error <= budget


def test_a_larger_budget_gives_a_smaller_template() -> None:
    sizes = [template(budget).size_bytes for budget in (0.0, 0.02, 0.2)]

    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_slow_changes_pack_to_a_quarter_of_half_precision() -> None:
    recorder = TemplateRecorder(NUM_STEPS, ALL_KNOWN, budget=0.05)
    for step in range(NUM_STEPS):
        recorder.add(page(step, dtype=torch.bfloat16))
    kept = recorder.finish()

    assert kept.raw_bytes >= 4 * kept.size_bytes
    assert kept.error <= 0.05


def test_a_budget_too_small_for_eight_bits_keeps_every_bit() -> None:
    kept = template(budget=1e-6)

    assert same(kept, template())


# Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.0, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_gives_back_what_was_written(tmp_path: Path, budget: float, dtype: torch.dtype) -> None:
    recorder = TemplateRecorder(4, torch.rand(4, 4) > 0.5, budget)
    for step in range(4):
        recorder.add(page(step, dtype=dtype))
    written = recorder.finish()
    write_template(tmp_path / "t", written, "key")
    read = read_template(tmp_path / "t", "key")

    assert same(read, written)
    assert torch.equal(read.known, written.known)
    assert (read.error, read.raw_bytes, read.num_steps) == (written.error, written.raw_bytes, written.num_steps)


def test_pages_lie_in_the_order_of_steps_and_aligned(tmp_path: Path) -> None:
    write_template(tmp_path / "t", template(), "key")
    data = (tmp_path / "t").read_bytes()
    starts = [data.index(bytes(page(step)["0.k"].numpy().tobytes())) for step in range(NUM_STEPS)]

    assert starts == sorted(starts)
    assert all(start % ALIGNMENT == 0 for start in starts)


@pytest.mark.parametrize("place", ["page", "index", "tail"])
def test_a_damaged_file_is_refused(tmp_path: Path, place: str) -> None:
    path = tmp_path / "t"
    write_template(path, template(), "key")
    data = bytearray(path.read_bytes())
    data[{"page": 5000, "index": -100, "tail": -3}[place]] ^= 0xFF
    path.write_bytes(bytes(data))

    with pytest.raises(BadInput, match="damaged"):
        read_template(path, "key")


@pytest.mark.parametrize("length", [0, 10, 5000, -1])
def test_a_half_written_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "t"
    write_template(path, template(), "key")
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(BadInput, match="not complete"):
        read_template(path, "key")


def test_a_file_of_another_request_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    write_template(tmp_path / "t", template(), "key")

    with pytest.raises(BadInput, match="another request"):
        read_template(tmp_path / "t", "another")
    with pytest.raises(BadInput, match="cannot be read"):
        read_template(tmp_path / "nothing", "key")


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_page", full)

    with pytest.raises(OutputFailed, match="No space left on device; edits go on"):
        write_template(tmp_path / "t", template(), "key")
    assert list(tmp_path.iterdir()) == []


# Store ------------------------------------------------------------------------------------------------------------


def test_what_was_put_is_found_and_what_was_not_is_none() -> None:
    kept = store_of()
    kept.put(KEY, template())

    assert same(kept.find(KEY), template())
    assert kept.find(replace(KEY, tenant="b")) is None


def test_host_memory_is_not_exceeded_and_the_oldest_leaves() -> None:
    one = template().size_bytes
    kept, three = store_of(host_bytes=2 * one), keys(3)
    for key in three[:2]:
        kept.put(key, template())
    kept.find(three[0])
    kept.put(three[2], template())

    assert [kept.find(key) is not None for key in three] == [True, False, True]
    assert kept.size_bytes["host"] == 2 * one


def test_a_template_in_use_does_not_leave() -> None:
    one = template().size_bytes
    kept, (first, second) = store_of(host_bytes=one), keys(2)
    kept.wanted(first)
    kept.put(first, template())
    kept.put(second, template())

    assert kept.find(first) is not None
    assert kept.find(second) is None
    kept.released(first)
    kept.put(second, template())
    assert kept.find(second) is not None


def test_the_queue_keeps_what_waiting_edits_want() -> None:
    one = template().size_bytes
    kept = TemplateStore(AdapterLERC, TierCapacities(host_bytes=2 * one))
    first, second, third = keys(3)
    kept.put(first, template())
    kept.put(second, template())
    kept.wanted(first)  # the older of the two, but somebody waits for it
    kept.put(third, template())

    assert [kept.find(key) is not None for key in (first, second, third)] == [True, False, True]


def test_what_leaves_the_device_stays_on_the_host() -> None:
    one = template().size_bytes
    kept, (first, second) = store_of(device_bytes=one, host_bytes=one), keys(2)
    kept.put(first, template())
    kept.put(second, template())

    assert kept.size_bytes == {"device": one, "host": one, "disk": 0}
    assert same(kept.find(first), template())


def test_the_disk_outlives_the_process(tmp_path: Path) -> None:
    store_of(tmp_path, disk_bytes=1 << 20).put(KEY, template())
    later = store_of(tmp_path, disk_bytes=1 << 20)

    assert same(later.find(KEY), template())
    assert later.problems == []


def test_the_quota_of_the_disk_holds(tmp_path: Path) -> None:
    kept = store_of(tmp_path, host_bytes=0, disk_bytes=3 * template().size_bytes)
    for key in keys(5):
        kept.put(key, template())

    assert kept.size_bytes["disk"] <= 3 * template().size_bytes
    assert [kept.find(key) is not None for key in keys(5)] == [False, False, False, True, True]


def test_files_of_an_earlier_process_make_room_too(tmp_path: Path) -> None:
    quota = {"host_bytes": 0, "disk_bytes": 2 * template().size_bytes}
    first, second = keys(2)
    store_of(tmp_path, **quota).put(first, template())
    later = store_of(tmp_path, **quota)
    later.put(second, template())

    assert later.find(second) is not None
    assert later.find(first) is None


def test_a_damaged_file_is_dropped_and_made_again(tmp_path: Path) -> None:
    store_of(tmp_path, disk_bytes=1 << 20).put(KEY, template())
    path = next(tmp_path.glob("*/*"))
    path.write_bytes(path.read_bytes()[:-7])
    later = store_of(tmp_path, disk_bytes=1 << 20)

    assert later.find(KEY) is None
    assert not path.exists()
    assert "made again" in later.problems[0]
    later.put(KEY, template())
    assert same(store_of(tmp_path, disk_bytes=1 << 20).find(KEY), template())


def test_a_file_under_the_name_of_another_is_not_believed(tmp_path: Path) -> None:
    kept = store_of(tmp_path, host_bytes=0, disk_bytes=1 << 20)
    other = replace(KEY, noise="1")
    kept.put(KEY, template())
    (tmp_path / f"{KEY.name}.template").rename(tmp_path / f"{other.name}.template")

    assert kept.find(other) is None
    assert "another request" in kept.problems[0]


def test_a_full_disk_costs_the_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutputFailed("cannot keep a template: No space left on device")

    monkeypatch.setattr(disk, "write_template", full)
    kept = store_of(tmp_path, disk_bytes=1 << 20)
    kept.put(KEY, template())

    assert same(kept.find(KEY), template())
    assert "No space left" in kept.problems[0]


def test_a_template_deleted_while_it_is_used_stays_usable(tmp_path: Path) -> None:
    store_of(tmp_path, disk_bytes=1 << 20).put(KEY, template())
    later = store_of(tmp_path, disk_bytes=1 << 20)
    found = later.find(KEY)
    later.forget(KEY.template)

    assert list(tmp_path.glob("*/*.template")) == []
    assert same(found, template())
    assert later.find(KEY) is None


def test_forgetting_an_image_takes_all_its_templates_and_no_others(tmp_path: Path) -> None:
    kept = store_of(tmp_path, disk_bytes=1 << 20)
    twice = [KEY, replace(KEY, num_steps=5)]
    others = [replace(KEY, image="another"), replace(KEY, tenant="b")]
    for key in (*twice, *others):
        kept.put(key, template())
    kept.forget(KEY.template)
    later = store_of(tmp_path, disk_bytes=1 << 20)

    assert [kept.find(key) for key in twice] == [later.find(key) for key in twice] == [None, None]
    assert all(kept.find(key) and later.find(key) for key in others)


@pytest.mark.parametrize("num_others", [0, 7])
def test_an_edit_that_runs_while_its_image_is_forgotten_adds_nothing(
    monkeypatch: pytest.MonkeyPatch, num_others: int
) -> None:
    monkeypatch.setattr(store, "MOST_FORGOTTEN", 3)
    kept = store_of()
    kept.wanted(KEY)
    kept.forget(KEY.template)
    for number in range(num_others):
        kept.forget(f"another {number}")
    kept.put(KEY, template())
    while_it_runs = kept.find(KEY)
    kept.released(KEY)
    kept.put(KEY, template())

    assert len(kept._forgotten) <= 3
    assert while_it_runs is None
    assert kept.find(KEY) is not None


def test_a_template_made_again_replaces_the_old_one() -> None:
    kept = store_of()
    kept.put(KEY, template())
    kept.put(KEY, template(seed=1))

    assert same(kept.find(KEY), template(seed=1))


def test_whoever_looks_for_a_template_that_is_coming_waits_for_it(tmp_path: Path) -> None:
    kept, may_go = store_of(tmp_path, host_bytes=0, disk_bytes=1 << 20), threading.Event()

    def make() -> Template:
        assert may_go.wait(60)
        return template()

    kept.put_soon(KEY, make)
    in_memory = kept.peek(KEY)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(kept.find, KEY)
        may_go.set()

        assert same(found.result(60), template())
    assert in_memory is None
    kept.close()


def test_a_template_that_cannot_be_made_is_not_there() -> None:
    def no_memory() -> Template:
        raise MemoryError

    kept = store_of()
    kept.put_soon(KEY, no_memory)

    assert kept.find(KEY) is None
    kept.close()


# Several owners, several processes --------------------------------------------------------------------------------


def test_the_quota_of_an_owner_pushes_out_its_own_files_only(tmp_path: Path) -> None:
    one = template().size_bytes
    kept = store_of(tmp_path, host_bytes=0, disk_bytes=20 * one, owner_bytes=3 * one)
    others = replace(KEY, tenant="b")
    kept.put(others, template())
    for key in keys(5):
        kept.put(key, template())

    assert kept.find(others) is not None
    assert [kept.find(key) is not None for key in keys(5)] == [False, False, False, True, True]


def test_a_template_above_the_quota_is_not_written_and_nothing_leaves_for_it(tmp_path: Path) -> None:
    small, large = keys(2)
    kept = store_of(tmp_path, host_bytes=0, disk_bytes=2 * template(num_steps=3).size_bytes)
    kept.put(small, template(num_steps=3))
    kept.put(large, template())

    assert kept.find(small) is not None
    assert kept.find(large) is None
    assert "above the quota" in kept.problems[0]


def test_two_processes_find_what_the_other_wrote_and_share_the_quota(tmp_path: Path) -> None:
    room = {"host_bytes": 0, "disk_bytes": 3 * template().size_bytes}
    ours, theirs = store_of(tmp_path, **room), store_of(tmp_path, **room)
    first, second, third = keys(3)
    ours.put(first, template())
    theirs.put(second, template(seed=1))
    seen = same(ours.find(second), template(seed=1))
    ours.put(third, template())

    assert seen
    assert theirs.size_bytes["disk"] <= room["disk_bytes"]
    assert theirs.find(third) is not None


def test_what_one_process_forgets_all_forget(tmp_path: Path) -> None:
    ours, theirs = (store_of(tmp_path, disk_bytes=1 << 20) for _ in range(2))
    other = replace(KEY, image="another")
    for key in (KEY, other):
        ours.put(key, template())
        theirs.find(key)
    ours.forget(KEY.template)

    assert [theirs.peek(KEY), theirs.find(KEY), theirs.peek(other) is None] == [None, None, False]
    theirs.put(KEY, template(seed=1))
    assert same(ours.find(KEY), template(seed=1))


def test_an_edit_that_began_before_another_process_forgot_its_image_adds_nothing(tmp_path: Path) -> None:
    ours, theirs = (store_of(tmp_path, disk_bytes=1 << 20) for _ in range(2))
    for forgets, is_kept in ((True, False), (False, True)):
        theirs.wanted(KEY)
        if forgets:
            ours.forget(KEY.template)
        theirs.put_soon(KEY, template)
        theirs.released(KEY)

        assert (theirs.find(KEY) is not None) == is_kept
        assert bool(list(tmp_path.glob("*/*.template"))) == is_kept
    theirs.close()


def test_an_image_forgotten_while_it_is_written_is_not_left_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (store_of(tmp_path, disk_bytes=1 << 20) for _ in range(2))

    def slow(*facts: Any) -> None:
        ours.forget(KEY.template)
        write_template(*facts)

    monkeypatch.setattr(disk, "write_template", slow)
    theirs.put(KEY, template())

    assert list(tmp_path.glob("*/*.template")) == []
    assert theirs.find(KEY) is None


def test_a_folder_that_cannot_be_written_to_is_forgotten_all_the_same(tmp_path: Path) -> None:
    kept = store_of(tmp_path, disk_bytes=1 << 20)
    kept.put(KEY, template())
    (tmp_path / disk.FORGOTTEN).write_text("a file where a folder should be")
    kept.forget(KEY.template)

    assert list(tmp_path.glob("*/*.template")) == []
    assert "cannot write" in kept.problems[0]


def test_what_a_killed_process_left_unfinished_is_taken_away_when_it_is_old(tmp_path: Path) -> None:
    store_of(tmp_path, disk_bytes=1 << 20).put(KEY, template())
    folder = next(tmp_path.iterdir())
    old, new = folder / f"{files.UNFINISHED}old", folder / f"{files.UNFINISHED}new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    later = store_of(tmp_path, disk_bytes=1 << 20)

    assert (old.exists(), new.exists()) == (False, True)
    assert later.find(KEY) is not None


def test_impossible_rooms_are_refused() -> None:
    with pytest.raises(BadInput, match="from zero up"):
        TierCapacities(host_bytes=-1)
    with pytest.raises(BadInput, match="no folder was given"):
        store_of(disk_bytes=1)

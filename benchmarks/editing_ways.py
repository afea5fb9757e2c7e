"""Edits of a tenth of an image on one accelerator: ways to compute them beside each other, and where time goes.

A template of two steps takes turns, so that little time goes into making it: seconds of an edit do not depend on what
pages hold. `plain` computes attention as libraries choose and everything for all rows and for every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from editing_bench import Bench, Bound, Page, say
from kernel_table import Limit, counted, play_ms, profiled, time_table

from takeup.core.report import Column, Table
from takeup.serving.engines.diffusers.device.choices import CHOICES
from takeup.serving.engines.diffusers.masked.full_size import FULL_SIZE

__all__ = ["EDIT_WAYS", "profile_tables", "ways_table"]

SHARE, NUM_PAGES, SECONDS = 0.1, 2, 60.0
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EditWay:
    """Whether attention is chosen by measuring, negative branches have no text, and edits know their timesteps."""

    is_chosen: bool
    is_silent: bool
    is_told: bool


EDIT_WAYS = {
    "plain": EditWay(is_chosen=False, is_silent=False, is_told=False),
    "attention": EditWay(is_chosen=True, is_silent=False, is_told=False),
    "silent": EditWay(is_chosen=False, is_silent=True, is_told=False),
    "told": EditWay(is_chosen=False, is_silent=False, is_told=True),
    "all": EditWay(is_chosen=True, is_silent=True, is_told=True),
}
POINTLESS = {"sdxl": "told", "flux": "silent"}


def ways_table(benches: Sequence[Bench], names: Sequence[str], limit: Limit) -> Table:
    """Seconds of an edit, milliseconds of its recorded step, for every network and way that fits into the time."""
    rows: list[Row] = []
    for bench in benches:
        like, pages = short_template(bench)
        for name in names:
            if name != POINTLESS[bench.name] and limit.allows(SECONDS, f"{bench.name} {name}"):
                rows.append(_row(bench, name, like, pages))
    columns = Column("network"), Column("way"), Column("step", "ms", 2), Column("edit", "s", 3)
    return Table(f"Ways to edit {SHARE:.0%} of an image", columns, tuple(rows))


@torch.no_grad()
def short_template(bench: Bench) -> tuple[dict[str, torch.Tensor], list[Page]]:
    """What pages are like, and some of them."""
    like: dict[str, torch.Tensor] = {}
    pages: list[Page] = []

    def keep(_step: int, page: dict[str, torch.Tensor]) -> None:
        pages.append(bench.flatten(page))
        like.update({name: torch.empty_like(one) for name, one in page.items()})

    bench.laid_out()
    replace(bench, num_steps=NUM_PAGES).record(bench.inputs(), keep)
    return like, pages


def _row(bench: Bench, name: str, like: dict[str, torch.Tensor], pages: list[Page]) -> Row:
    with _computing(bench, name, like) as bound:
        edit_s = bound.edit_s(pages)
        step_ms = play_ms(_replay(bound))
    say(f"{bench.name} {name}", f"step {step_ms:.2f} ms, edit {edit_s:.3f} s")
    return bench.name, name, step_ms, edit_s


def _computing(bench: Bench, name: str, like: dict[str, torch.Tensor]) -> Any:
    way = EDIT_WAYS[name]
    CHOICES.off = frozenset() if way.is_chosen else frozenset({"attention"})
    return replace(bench, is_silent=way.is_silent, is_told=way.is_told).bound(like, [SHARE])


def _replay(bound: Bound) -> Any:
    return bound._recorded()._plays[0]


def profile_tables(benches: Sequence[Bench], names: Sequence[str], is_tiny: bool) -> Iterator[Table]:
    """Where the time of a masked step goes."""
    for bench in benches:
        like, pages = short_template(bench)
        for name in names:
            with _computing(bench, name, like) as bound:
                bound.ahead(pages[0])
                play = _replay(bound)
                kernels = profiled(play)
                for one in kernels[:20]:
                    print(f"{one.time_us / 1e3:9.3f} ms {one.num_calls:6.0f}x  {one.name[:110]}", flush=True)
                flop = {} if is_tiny else _counted_masked(bench.name)
                yield time_table(f"Where a step of {bench.name} goes, {name}", kernels, play_ms(play), flop)


def _counted_masked(name: str) -> dict[str, float]:
    """Of a whole step, with as much of each kind as the mask leaves; convolutions of masked pixels are products."""
    size = FULL_SIZE[name]
    network, inputs = size.network("meta"), size.inputs(size.num_rows, {"device": "meta", "dtype": torch.bfloat16})
    whole = counted(lambda: network(**inputs))
    whole["product"] = whole.get("product", 0.0) + whole.pop("convolution", 0.0)
    queries = SHARE if name == "sdxl" else (SHARE * 4096 + 512) / (4096 + 512)
    return {kind: flop * queries for kind, flop in whole.items()}

"""Read cached activations of a template for one step, per block as K/V or as block input (rows)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from takeup.serving.engines.diffusers.masked.from_rows import KvFromRows
from takeup.serving.engines.diffusers.masked.pages import OUT, ROWS, Page
from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.engines.templates.templates import WHOLE_PAGE, PageReader, PageSelection


@dataclass(frozen=True, slots=True)
class BlockForms:
    """Blocks that compute K/V from their input (`rows`); `whole` ones run fully, which gives the next block's input."""

    rows: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PageForm:
    """What is read of the pages of a template, and the blocks that are computed whole."""

    wanted: PageSelection = WHOLE_PAGE
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadedPage:
    """A loaded page, possibly with block inputs, and the function that computes keys and values from these."""

    page: Page
    made: Callable[[], Page]

    def whole(self) -> Page:
        """Keys and values of all blocks, and all other tensors except block inputs."""
        return {name: one for name, one in self.page.items() if not name.endswith(ROWS)} | dict(self.made())


@dataclass(frozen=True, slots=True)
class TemplatePages:
    """Template pages for the steps of a run."""

    reader: PageReader
    run: DenoisingRun
    from_rows: KvFromRows
    form: PageForm = PageForm()

    def formed(self, forms: BlockForms, far: tuple[str, ...] = ()) -> PageForm:
        """What to read for these forms; keys and values if the template is on the device. `far` as in `PageSelection`."""
        names = self.reader.template.pages[0]
        if self.reader.is_near:
            return PageForm(page_selection(names, frozenset(), far=far))
        return PageForm(page_selection(names, forms.rows, self.from_rows.behind(forms.whole), far), forms.whole)

    def has(self, step: int) -> bool:
        """Whether the template has this step."""
        return self.reader.has(step)

    def keys(self, step: int) -> Page:
        """Page of a step with keys and values only, without block inputs."""
        return self.reader.page(step, self.formed(BlockForms()).wanted)

    def page(self, step: int) -> LoadedPage:
        """Page of a step, in the form of these pages."""
        page = self.reader.page(step, self.form.wanted)
        if not any(name.endswith(ROWS) for name in page):
            return LoadedPage(page, dict)
        whole = self.form.whole
        told = self.from_rows.conditioning(
            self.run, step, bool(whole)
        )  # now, so that the result does not reference the run
        return LoadedPage(page, partial(self.from_rows.made, page, told, whole))


def page_rows(pages: Sequence[LoadedPage]) -> Iterator[tuple[range, LoadedPage]]:
    """Pages, each with the range of its rows in the batch."""
    first = 0
    for one in pages:
        rows = range(first, first + len(one.page[OUT]))
        first = rows.stop
        yield rows, one


def page_selection(
    names: Iterable[str],
    from_rows: frozenset[str],
    behind_whole: frozenset[str] = frozenset(),
    far: tuple[str, ...] = (),
) -> PageSelection:
    """Read inputs of blocks `from_rows`, nothing of those also `behind_whole`, keys and values of the others."""
    rowed = {name.removesuffix(ROWS) for name in names if name.endswith(ROWS)}
    unused = {f"{name}{part}" for name in rowed & from_rows for part in (".k", ".v")}
    return PageSelection(
        frozenset(unused | {name + ROWS for name in rowed if name not in from_rows - behind_whole}), far
    )

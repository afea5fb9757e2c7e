"""What templates say to calls: pages as they come, some blocks as rows, of which keys and values are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from takeup.serving.engines.diffusers.masked.from_rows import FromRows
from takeup.serving.engines.diffusers.masked.pages import OUT, ROWS, Page
from takeup.serving.engines.diffusers.runs import Run
from takeup.serving.engines.templates.templates import ALL, Reader, Wanted

__all__ = ["Brought", "Form", "Forms", "Pages", "in_rows", "wanted_of"]


@dataclass(frozen=True, slots=True)
class Forms:
    """Blocks that make keys and values from rows; those of them that are computed whole leave rows to the next."""

    rows: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Form:
    """How a template comes: what is read of its pages, and the blocks that are computed whole."""

    wanted: Wanted = ALL
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Brought:
    """A page as it comes, perhaps with rows, and how to make keys and values of these."""

    page: Page
    made: Callable[[], Page]

    def whole(self) -> Page:
        """Keys and values of all blocks, and the rest."""
        return {name: one for name, one in self.page.items() if not name.endswith(ROWS)} | dict(self.made())


@dataclass(frozen=True, slots=True)
class Pages:
    """What a template says to the steps of a run."""

    reader: Reader
    run: Run
    from_rows: FromRows
    form: Form = Form()

    def formed(self, forms: Forms, far: tuple[str, ...] = ()) -> Form:
        """In these forms, unless the template is near; `far` as of `Wanted`."""
        names = self.reader.template.pages[0]
        if self.reader.is_near:
            return Form(wanted_of(names, frozenset(), far=far))
        return Form(wanted_of(names, forms.rows, self.from_rows.behind(forms.whole), far), forms.whole)

    def has(self, step: int) -> bool:
        """Whether the template knows this step."""
        return self.reader.has(step)

    def keys(self, step: int) -> Page:
        """What it says to this one, without rows."""
        return self.reader.page(step, self.formed(Forms()).wanted)

    def page(self, step: int) -> Brought:
        """What it says to this one."""
        page = self.reader.page(step, self.form.wanted)
        if not any(name.endswith(ROWS) for name in page):
            return Brought(page, dict)
        whole = self.form.whole
        told = self.from_rows.told(self.run, step, bool(whole))  # now: whoever keeps what is brought keeps no run
        return Brought(page, partial(self.from_rows.made, page, told, whole))


def in_rows(pages: Sequence[Brought]) -> Iterator[tuple[range, Brought]]:
    """Pages, and their rows one below the other."""
    first = 0
    for one in pages:
        rows = range(first, first + len(one.page[OUT]))
        first = rows.stop
        yield rows, one


def wanted_of(
    names: Iterable[str],
    from_rows: frozenset[str],
    behind_whole: frozenset[str] = frozenset(),
    far: tuple[str, ...] = (),
) -> Wanted:
    """Of a page with these names: rows of some blocks, of those `behind_whole` nothing, of others keys and values."""
    rowed = {name.removesuffix(ROWS) for name in names if name.endswith(ROWS)}
    unused = {f"{name}{part}" for name in rowed & from_rows for part in (".k", ".v")}
    return Wanted(frozenset(unused | {name + ROWS for name in rowed if name not in from_rows - behind_whole}), far)

"""Templates of edits: looked up when an edit joins the batch; recorded by edits without one, step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from takeup.serving.engines.diffusers.masked.editing import EditState, active_edit, edit_state_of
from takeup.serving.engines.diffusers.masked.layouts import row_slices
from takeup.serving.engines.diffusers.masked.pages import Page
from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.engines.templates.store import TemplateStore
from takeup.serving.engines.templates.templates import Template, TemplateRecorder

LOG = logging.getLogger(__name__)
NO_CAPACITY = (
    "a template of more than %.1f GiB is not kept, for there is room for %.1f: give it more, or pack templates"
)


class EditTemplates:
    """Keeps templates in a store, packed with an error of at most `budget`. `watch` samples the tokens to check.

    Edits that would compute more than `whole_share` of the tokens use no template.
    """

    def __init__(
        self, store: TemplateStore, budget: float, whole_share: float, watch: Callable[[EditState, int], None]
    ) -> None:
        self._store, self._budget, self._whole_share, self._watch = store, budget, whole_share, watch
        self._said_no_room = False

    def joined(self, run: DenoisingRun) -> None:
        """Assign a template to an edit, or start recording one."""
        editing = edit_state_of(run)
        if editing is None or editing.key is None:
            return
        for key in editing.keys:
            self._store.wanted(key)
        template = editing.found or self._store.peek(editing.key)  # another edit may have stored it since
        if template is not None and self._is_used(editing, template, run.request.seed):
            return
        begun = None
        if editing.shared is not None and self._is_used(editing, editing.shared, run.request.seed):
            begun = editing.shared
        editing.recorder = TemplateRecorder(len(run.timesteps), ~editing.mask, self._budget, begun)

    def left(self, run: DenoisingRun) -> None:
        """Store the template that an edit recorded, if complete, and release its keys."""
        editing = edit_state_of(run)
        if editing is None or editing.key is None:
            return
        if editing.recorder is not None and editing.recorder.is_complete and run.is_done:
            self._store.put_soon(editing.key, editing.recorder.finish)
            if editing.shared_key is not None and editing.template is None:
                made = editing.recorder.finish().first(editing.num_shared)
                self._store.put_soon(editing.shared_key, lambda: made)
        for key in editing.keys:
            self._store.released(key)

    def add(self, runs: Sequence[DenoisingRun], recorded: Page) -> None:
        """Add the activations of one step to the recorders of edits that share a call."""
        for run, own in row_slices(runs):
            recorder = active_edit(run).recorder
            assert recorder is not None
            recorder.add({name: kept[own].clone() for name, kept in recorded.items()})
            if recorder.size_bytes > self._store.room.most_bytes:
                active_edit(run).recorder = None
                self._say_no_room(recorder.size_bytes)

    def _is_used(self, editing: EditState, template: Template, seed: int) -> bool:
        """Use the template unless it covers too few tokens; then it is recorded again."""
        editing.use(template)
        if editing.share > self._whole_share:
            editing.template = editing.reader = None
            return False
        self._watch(editing, seed)
        return True

    def _say_no_room(self, size_bytes: int) -> None:
        """Warn once, unless the store has no capacity by configuration."""
        room_bytes = self._store.room.most_bytes
        if room_bytes and not self._said_no_room:
            LOG.warning(NO_CAPACITY, size_bytes / 2**30, room_bytes / 2**30)
            self._said_no_room = True

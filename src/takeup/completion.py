"""Completion in the shell: click completes commands and options, and here are the names of a domain as values.

`eval "$(_TAKEUP_COMPLETE=bash_source takeup)"` switches it on; zsh and fish have sources of their own.
"""

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from takeup.core.lazy import load

# By domain: what an option, or else an argument, takes.
REGISTRIES = {
    "caching": {
        "": "takeup.caching.policies:POLICIES",
        "--workload": "takeup.caching.traces:WORKLOADS",
    },
    "cluster": {"": "takeup.cluster.policies:POLICIES", "--engine": "takeup.cluster.engines:ENGINES"},
    "edge": {
        "": "takeup.edge.policies:POLICIES",
        "--policy": "takeup.edge.policies:POLICIES",
        "--setting": "takeup.edge.traces.generators:SETTINGS",
        "--engine": "takeup.edge.engines:ENGINES",
    },
    "training": {"": "takeup.training.pipelines.planners:POLICIES"},
    "reproduce": {"": "takeup.papers:PAPERS"},
    "example": {"": "takeup.example:SAMPLES"},
}


class Names(ShellComplete):
    """Completes with click, and where click knows nothing with the names of the domain; lists by their last entry."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """What the word may become."""
        return super().get_completions(args, incomplete) or [CompletionItem(name) for name in names(args, incomplete)]


def names(args: list[str], incomplete: str) -> list[str]:
    """The names that the word may become after the words `args`; those before its last comma are kept."""
    takes = REGISTRIES.get(args[0], {}) if args else {}
    last = args[-1] if args[-1:] and args[-1].startswith("--") else ""
    before, comma, begun = incomplete.rpartition(",")
    known = load(takes[last]) if last in takes else ()
    return [f"{before}{comma}{name}" for name in known if name.startswith(begun)]


def register() -> None:
    """Let the shells that click knows complete names."""
    for shell in (BashComplete, ZshComplete, FishComplete):
        add_completion_class(type(f"Names{shell.__name__}", (Names, shell), {}))

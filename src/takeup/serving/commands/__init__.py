"""Subcommands of `takeup serving`; each is imported only when it is invoked."""

from __future__ import annotations

import click

from takeup.core.lazy import load

VERBS = {
    "simulate": ("takeup.serving.commands.simulate:simulate", "One design serves a queue in virtual time."),
    "compare": ("takeup.serving.commands.compare:compare", "Several designs on the same requests, at several rates."),
    "edit": ("takeup.serving.commands.edit:edit", "Change the masked part of an image."),
    "quality": ("takeup.serving.commands.quality:quality", "Accelerated images beside lossless ones."),
}


class _Verbs(click.Group):
    """Click group that lists all subcommands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = load(VERBS[cmd_name][0])
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=_Verbs)
def serving() -> None:
    """Serve diffusion models where each request brings its own LoRAs and ControlNets.

    Designs: diffusers static nirvana katz takeup. `takeup serve` starts a real server.
    """

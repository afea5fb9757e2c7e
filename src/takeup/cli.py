"""The command tree. A command's module is imported only when the command is named, so that help is fast."""

import os
import re
import sys

import click

from takeup import __version__
from takeup.core.extras import explain
from takeup.core.lazy import load
from takeup.errors import TakeupError, nearest

COMMANDS = {
    "caching": ("takeup.caching.commands:caching", "DAG-aware cache eviction for data-parallel jobs (LRC, LERC)."),
    "cluster": ("takeup.cluster.commands:cluster", "Spot GPU jobs with guarantees: replays, Slurm, Kubernetes (GFS)."),
    "edge": ("takeup.edge.commands:edge", "Radio and CPU planned together for offloading, with a proven gap."),
    "serving": ("takeup.serving.commands:serving", "Diffusion models with LoRAs, ControlNets and edits per request."),
    "serve": ("takeup.serving.commands.serve:serve", "Serve a diffusion model over HTTP, for OpenAI clients."),
    "streaming": ("takeup.streaming.commands:streaming", "Start-up delay and stalls of video in a shared cell (QoE)."),
    "training": ("takeup.training.commands:training", "Stragglers (FALCON) and pipeline schedules (ADAPTRA)."),
    "try": ("takeup.tryfile:try_file", "Recognise your log, trace or model, and say what takeup would change."),
    "example": ("takeup.example:example", "Write a sample file of the kind that a command reads."),
    "tour": ("takeup.tour.command:tour", "Nine systems: a number and a card each, compared with the best alternative."),
    "reproduce": (
        "takeup.papers.commands:reproduce",
        "Run the experiments of a paper; its numbers and ours.",
    ),
    "rerun": ("takeup.rerun:rerun", "Repeat the run that made a report, or a scenario file."),
    "doctor": ("takeup.doctor:doctor", "Which engines work on this machine, and what is missing."),
}
ALIASES = {"run-again": "rerun"}


class LazyGroup(click.Group):
    """A group whose commands are named by `module:attribute` and imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        command = load(COMMANDS[name][0])
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS | ALIASES and not args[0].startswith("-"):
            near = nearest(args[0], list(COMMANDS))
            hint = f"; did you mean {near!r}?" if near else ""
            raise click.UsageError(f"no command {args[0]!r}{hint} (known: {', '.join(COMMANDS)})", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="takeup")
def takeup() -> None:
    """Take up the slack in shared resources, from the edge to the GPU fleet.

    Exit code 0: done. 1: a check failed. 2: a mistake, explained in one sentence.
    """


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2."""
    sys.exit(_exit_code())


def _exit_code() -> int:
    if "_TAKEUP_COMPLETE" in os.environ:
        load("takeup.completion:register")()
    try:
        code = takeup.main(prog_name="takeup", standalone_mode=False)
        return code if isinstance(code, int) else 0  # click returns the argument of `ctx.exit`
    except SystemExit:
        return 0  # click exits itself only on a broken pipe (`| head`) or for shell completions
    except click.ClickException as error:
        error.show()
        return 2
    except (TakeupError, OSError) as error:
        click.echo(f"error: {with_option(str(error), sys.argv[1:])}", err=True)
        return 2
    except ModuleNotFoundError as error:  # of an extra that is not installed; anything else is a defect of ours
        if (missing := explain(error, "this command")) is None:
            raise
        click.echo(f"error: {missing}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped", err=True)
        return 130


def with_option(message: str, words: list[str]) -> str:
    """The message; where it begins with a field such as `start_s`, with the option of the command in `words`."""
    found = re.match(r"(?:options: )?'?(\w+)(?:\.\d+)*'?(?= is )", message)
    options = {param.name: param.opts[0] for param in _command(words).params if isinstance(param, click.Option)}
    if found is None or found[1] not in options:
        return message
    return options[found[1]] + message[found.end() :]


def _command(words: list[str]) -> click.Command:
    """The command that the words call, as far as they are commands."""
    command: click.Command = takeup
    for word in words:
        inner = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if inner is None:
            return command
        command = inner
    return command

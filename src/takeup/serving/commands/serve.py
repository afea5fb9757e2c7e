"""`takeup serve`: serve a model behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from takeup.core.units import parse_amount
from takeup.errors import BadInput, MissingEngine
from takeup.output import say

if TYPE_CHECKING:
    from takeup.serving.server.backends import Backend
    from takeup.serving.server.settings import ServerPolicies


NEEDED = {
    "diffusion": ("torch", "diffusers", "transformers", "peft"),
    "web": ("fastapi", "uvicorn", "multipart", "prometheus_client", "PIL"),
}


@click.command()
@click.argument("model")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; a non-loopback address requires --keys.",
)
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--device", default="auto", show_default=True, help="Device: cpu, cuda, cuda:1 ...")
@click.option("--keys", type=click.Path(path_type=Path), help="File with a line `tenant:key` for each key.")
@click.option("--adapters", type=click.Path(path_type=Path), help="Folder of LoRAs that every tenant may use.")
@click.option(
    "--uploads", type=click.Path(path_type=Path), help="Folder for uploaded LoRAs; deleted at exit if absent."
)
@click.option(
    "--controlnet", "controlnets", multiple=True, help="A ControlNet as NAME=FOLDER or NAME=OWNER/ID; repeat."
)
@click.option(
    "--control-change",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Reuse ControlNet residuals while their predicted change is below this; 0 computes every step.",
)
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(1), help="Worker processes, each with the model."
)
@click.option("--ray", "on_ray", is_flag=True, help="Run the workers with Ray Serve, here or on a cluster.")
@click.option(
    "--max-running", default=16, show_default=True, type=click.IntRange(1), help="Images in the step loop of a worker."
)
@click.option(
    "--max-waiting",
    default=256,
    show_default=True,
    type=click.IntRange(0),
    help="Images that may wait; further requests get 429.",
)
@click.option(
    "--max-rows", default=16, show_default=True, type=click.IntRange(2), help="Maximum rows of a network call."
)
@click.option("--cache", default="2GiB", show_default=True, help="Memory of the LoRA cache.")
@click.option(
    "--cache-policy",
    default="lerc",
    show_default=True,
    help="Eviction policy of the LoRA cache; see the serving README.",
)
@click.option(
    "--order",
    default="shared_loads",
    show_default=True,
    help="Queue order: shared_loads, fewest_loads or in_order (FIFO).",
)
@click.option(
    "--patience",
    default=64,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum times that a request is overtaken.",
)
@click.option(
    "--route", default="affinity", show_default=True, help="Routing: affinity (worker with the LoRAs) or least_busy."
)
@click.option(
    "--in-time/--any-deadline",
    default=True,
    show_default=True,
    help="Refuse requests that are expected to miss their deadline.",
)
@click.option(
    "--templates",
    type=click.Path(path_type=Path),
    help="Folder for edited images and their templates, shared by all workers.",
)
@click.option("--template-memory", default="1GiB", show_default=True, help="Host memory of a worker for templates.")
@click.option(
    "--template-device-memory",
    default="16GiB",
    show_default=True,
    help="Device memory for templates, where there is an accelerator.",
)
@click.option(
    "--template-disk", default="8GiB", show_default=True, help="Quota of each tenant in the folder of templates."
)
@click.option(
    "--packing-error",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Compress templates up to this relative error.",
)
@click.option(
    "--template-rows", is_flag=True, help="Templates also store block inputs; each block loads what is fastest."
)
@click.option("--deterministic", is_flag=True, help="No shared calls: images do not depend on other requests.")
@click.option("--json", "as_json", is_flag=True, help="Write the log as JSON lines.")
def serve(**options: Any) -> None:
    """Serve MODEL over an OpenAI-compatible HTTP API: images, edits, adapters, progress, metrics.

    MODEL is a folder in diffusers format, a hub id such as owner/name, or one of takeup/tiny-sd15, takeup/tiny-sdxl,
    takeup/tiny-sdxl-controlnet, takeup/tiny-sd3, takeup/tiny-flux, which have random weights and need no download.

    Keys are read from --keys, or from the environment: TAKEUP_API_KEY, or TAKEUP_API_KEYS as tenant:key,tenant:key.
    Without keys, the server listens on localhost only. The address is printed on stdout when the server is ready.
    """
    _check_installed(options["on_ray"])
    with ExitStack() as cleanup:
        _serve(options, cleanup)
    say("stopped")


def _serve(options: dict[str, Any], cleanup: ExitStack) -> None:
    from takeup.serving.server.access import is_loopback, load_keys
    from takeup.serving.server.adapter_registry import shared_adapters
    from takeup.serving.server.app import listen_on, log_config, make_app
    from takeup.serving.server.app import serve as serve_app
    from takeup.serving.server.settings import ServerLimits, ServerSettings

    keys = load_keys(options["keys"], os.environ)
    if not keys and not is_loopback(options["host"]):
        raise BadInput(
            f"--host {options['host']} lets other machines in, and there are no keys; give --keys FILE or set "
            "TAKEUP_API_KEY"
        )
    shared_adapters(options["adapters"])  # fail early on a bad folder, before the model is loaded
    limits = ServerLimits(options["max_running"] * options["workers"], options["max_waiting"])
    uploads = options["uploads"] or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="takeup-uploads-")))
    rules = _rules(options)
    settings = ServerSettings(options["model"], uploads, options["adapters"], limits, rules, options["templates"])
    listener = cleanup.enter_context(listen_on(options["host"], options["port"]))
    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also runs the cleanup
    cleanup.callback(signal.signal, signal.SIGTERM, usual)
    backend = _backend(options)
    app = make_app(settings, backend, keys, on_start=lambda: _greet(listener, options["model"], bool(keys)))
    serve_app(app, listener, log_config(options["as_json"]))


def _backend(options: dict[str, Any]) -> Backend:
    """Load the model in this process, in worker processes, or in Ray Serve replicas."""
    from takeup.serving.server.backends.local import ServingPlan, TemplateStorage

    num_workers, began_s = options["workers"], time.monotonic()
    plan = ServingPlan(
        options["model"],
        options["device"],
        dict(_named(text) for text in options["controlnets"]),
        deterministic=options["deterministic"],
        max_rows=options["max_rows"],
        control_change=options["control_change"],
        cache_bytes=parse_amount(options["cache"]).of(1),
        cache_policy=options["cache_policy"],
        reads_in_process=True,
        num_cpu_threads=max(1, (os.cpu_count() or 1) // num_workers) if num_workers > 1 else None,
        templates=TemplateStorage(
            options["templates"],
            device_bytes=parse_amount(options["template_device_memory"]).of(1),
            memory_bytes=parse_amount(options["template_memory"]).of(1),
            tenant_bytes=parse_amount(options["template_disk"]).of(1),
            packing_error=options["packing_error"],
            has_rows=options["template_rows"],
        ),
    )
    say(
        f"loading {options['model']} on {options['device']}" + (f" in {num_workers} workers" if num_workers > 1 else "")
    )
    backend: Backend
    if options["on_ray"]:
        from takeup.serving.server.backends.ray_serve import RayBackend

        backend = RayBackend(plan, num_workers)
    elif num_workers > 1:
        from takeup.serving.server.backends.worker_pool import PoolBackend

        backend = PoolBackend(plan, num_workers, say, _rules(options).router())
    else:
        backend = plan.build()
    say(f"loaded a {backend.card.family} in {time.monotonic() - began_s:.1f} s")
    return backend


def _rules(options: dict[str, Any]) -> ServerPolicies:
    """The scheduling policies of the server, from the command-line options."""
    from takeup.serving.server.settings import ServerPolicies

    return ServerPolicies(options["order"], options["patience"], options["route"], options["in_time"])


def _greet(listener: socket.socket, model: str, has_keys: bool) -> None:
    """Print the address and examples of how to call the server."""
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = "-H 'Authorization: Bearer KEY' " if has_keys else ""
    body = f'{{"model": "{model}", "prompt": "a cat", "size": "64x64", "steps": 4}}'
    say(f"listening on {address}; stop with Ctrl-C. Try:")
    say(f"  curl {address}/v1/images/generations {key}-H 'Content-Type: application/json' -d '{body}'")
    say(f"  or open {address}/edit in a browser, and paint a mask")
    say(f"  from openai import OpenAI; OpenAI(base_url='{address}/v1', api_key='{'KEY' if has_keys else 'none'}')")
    click.echo(address)
    sys.stdout.flush()


def _named(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    if not (name and equals and where):
        raise BadInput(f"--controlnet {text!r} is not NAME=FOLDER; write for example depth=models/depth")
    return name, where


def _check_installed(on_ray: bool) -> None:
    for extra, packages in (NEEDED | ({"ray": ("ray",)} if on_ray else {})).items():
        for package in packages:
            if find_spec(package) is None:
                raise MissingEngine(
                    f"takeup serve needs the package {package!r}\n\nhint: pip install 'takeup[{extra}]'"
                )

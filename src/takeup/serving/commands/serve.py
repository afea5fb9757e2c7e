"""`takeup serve`: serve a model behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from takeup.core.extras import need
from takeup.core.units import parse_amount
from takeup.errors import BadInput
from takeup.output import say

if TYPE_CHECKING:
    from takeup.serving.server.backends import Backend
    from takeup.serving.server.settings import ServerPolicies


SPARE_FILES = 256

FOLDER = click.Path(path_type=Path)

# Options by their names, in the order of the help text.
OPTIONS: dict[str, dict[str, Any]] = {
    "--host": {"default": "127.0.0.1", "help": "Address to listen on; a non-loopback address requires --keys."},
    "--port": {"default": 8000, "type": click.IntRange(0, 65535), "help": "Port; 0 takes a free one."},
    "--device": {"default": "auto", "help": "Device: cpu, cuda, cuda:1 ..."},
    "--precision": {
        "default": "auto",
        "type": click.Choice(["auto", "fp8"]),
        "help": "fp8: the widest matmuls in eight bits, faster on recent GPUs; images change a little.",
    },
    "--keys": {"type": FOLDER, "help": "File with a line `tenant:key` for each key."},
    "--grace": {
        "default": 30.0,
        "type": click.FloatRange(0),
        "help": "Seconds for running requests to finish after SIGTERM; then they get 503.",
    },
    "--max-connections": {"default": 4000, "type": click.IntRange(1), "help": "Open connections."},
    "--cors": {
        "multiple": True,
        "help": "Origin whose web pages may use the server, such as https://app.example; repeat.",
    },
    "--adapter-source sources": {
        "multiple": True,
        "help": "Prefix of paths (/loras/), URLs (https://host/) or hub ids (hub:owner/) that LoRAs may be read from.",
    },
    "--webhook webhooks": {"multiple": True, "help": "Prefix of URLs that may be told when a job is done; repeat."},
    "--data-urls": {"is_flag": True, "help": "Answer `response_format: url` with the image in the URL."},
    "--no-safety-checker": {"is_flag": True, "help": "Serve a model without its safety checker and watermark."},
    "--adapters": {"type": FOLDER, "help": "Folder of LoRAs that every tenant may use."},
    "--uploads": {"type": FOLDER, "help": "Folder for uploaded LoRAs; deleted at exit if absent."},
    "--controlnet controlnets": {"multiple": True, "help": "A ControlNet as NAME=FOLDER or NAME=OWNER/ID; repeat."},
    "--control-change": {
        "default": 0.0,
        "type": click.FloatRange(0, 1, max_open=True),
        "help": "Reuse ControlNet residuals while their predicted change is below this; 0 computes every step.",
    },
    "--workers": {"default": 1, "type": click.IntRange(1), "help": "Worker processes, each with the model."},
    "--ray on_ray": {"is_flag": True, "help": "Run the workers with Ray Serve, here or on a cluster."},
    "--max-running": {"default": 16, "type": click.IntRange(1), "help": "Images in the step loop of a worker."},
    "--max-waiting": {
        "default": 256,
        "type": click.IntRange(0),
        "help": "Images that may wait; further requests get 429. Half of the places are shared equally by tenants.",
    },
    "--max-rows": {"default": 16, "type": click.IntRange(2), "help": "Maximum rows of a network call."},
    "--cache": {"default": "2GiB", "help": "Memory of the LoRA cache."},
    "--cache-policy": {"default": "lerc", "help": "Eviction policy of the LoRA cache; see the serving README."},
    "--order": {"default": "shared_loads", "help": "Queue order: shared_loads, fewest_loads or in_order (FIFO)."},
    "--patience": {"default": 64, "type": click.IntRange(0), "help": "Maximum times that a request is overtaken."},
    "--route": {"default": "affinity", "help": "Routing: affinity (worker with the LoRAs) or least_busy."},
    "--in-time/--any-deadline": {
        "default": True,
        "help": "Refuse requests that are expected to miss their deadline.",
    },
    "--templates": {"type": FOLDER, "help": "Folder for edited images and their templates, shared by all workers."},
    "--template-memory": {
        "default": "auto",
        "help": "Host memory of a worker for templates; auto: a quarter of what is available, for all workers.",
    },
    "--template-device-memory": {
        "default": "auto",
        "help": "Device memory for templates, where there is an accelerator; auto: 60 % of what the model leaves.",
    },
    "--template-disk": {"default": "8GiB", "help": "Quota of each tenant in the folder of templates."},
    "--packing-error": {
        "default": 0.0,
        "type": click.FloatRange(0, 1),
        "help": "Compress templates up to this relative error.",
    },
    "--deterministic": {"is_flag": True, "help": "No shared calls: images do not depend on other requests."},
    "--json as_json": {"is_flag": True, "help": "Write the log as JSON lines."},
}


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds the options."""
    for names, settings in reversed(OPTIONS.items()):
        shows = "default" in settings
        command = click.option(*names.split(), **settings, show_default=shows)(command)
    return command


@click.command()
@click.argument("model", default="takeup/scenes")
@serve_options
def serve(**options: Any) -> None:
    """Serve MODEL over an OpenAI-compatible HTTP API: images, edits, adapters, progress, metrics.

    Without MODEL, a small trained one is served: takeup/scenes paints shapes in 128x128 pixels (or takeup/scenes-flux).
    MODEL is a folder in diffusers format, a hub id such as owner/name, or one of takeup/tiny-sd15, takeup/tiny-sdxl,
    takeup/tiny-sdxl-controlnet, takeup/tiny-sd3, takeup/tiny-flux, which have random weights and need no download.

    Keys are read from --keys, or from the environment: TAKEUP_API_KEY, or TAKEUP_API_KEYS as tenant:key,tenant:key.
    Without keys, the server listens on localhost only. The address is printed on stdout when the server is ready.
    """
    _check_installed(options["on_ray"])
    options = with_scenes(options)
    with ExitStack() as cleanup:
        _serve(options, cleanup)
    say("stopped")


def with_scenes(options: dict[str, Any]) -> dict[str, Any]:
    """The options with where the weights of takeup/scenes lie, its ControlNet, and its LoRAs."""
    family = {"takeup/scenes": "sdxl", "takeup/scenes-flux": "flux"}.get(options["model"])
    if family is None:
        return {**options, "weights": options["model"]}
    from takeup.scenes.models import WEIGHTS

    own = {"weights": str(WEIGHTS / family), "adapters": options["adapters"] or WEIGHTS / f"{family}-loras"}
    if family == "sdxl":
        own["controlnets"] = (*options["controlnets"], f"edges={WEIGHTS / 'sdxl-edges'}")
    return {**options, **own}


def _serve(options: dict[str, Any], cleanup: ExitStack) -> None:
    from takeup.core.pages import is_loopback
    from takeup.serving.server.access import load_keys
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
    limits = ServerLimits(
        options["max_running"] * options["workers"],
        options["max_waiting"],
        max_connections=_allow_files(options["max_connections"]),
    )
    uploads = options["uploads"] or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="takeup-uploads-")))
    own = {
        name: options[name] for name in ("model", "adapters", "templates", "cors", "sources", "webhooks", "data_urls")
    }
    settings = ServerSettings(uploads=uploads, limits=limits, rules=_rules(options), **own)
    listener = cleanup.enter_context(listen_on(options["host"], options["port"]))
    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also runs the cleanup
    cleanup.callback(signal.signal, signal.SIGTERM, usual)
    backend = _backend(options)
    app = make_app(settings, backend, keys, on_start=lambda: _greet(listener, options["model"], bool(keys)))
    serve_app(app, listener, log_config(options["as_json"]), options["grace"])


def _allow_files(num_connections: int) -> int:
    """Raise the limit of open files as far as allowed; returns how many connections fit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = num_connections + SPARE_FILES
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), hard))
    return max(1, min(num_connections, soft - SPARE_FILES))


def _backend(options: dict[str, Any]) -> Backend:
    """Load the model in this process, in worker processes, or in Ray Serve replicas."""
    from takeup.serving.server.backends.local import ServingPlan, TemplateStorage

    num_workers, began_s = options["workers"], time.monotonic()
    plan = ServingPlan(
        options["weights"],
        options["device"],
        dict(_named(text) for text in options["controlnets"]),
        deterministic=options["deterministic"],
        checks_safety=not options["no_safety_checker"],
        precision=options["precision"],
        max_rows=options["max_rows"],
        control_change=options["control_change"],
        cache_bytes=parse_amount(options["cache"]).of(1),
        cache_policy=options["cache_policy"],
        reads_in_process=True,
        num_cpu_threads=max(1, (os.cpu_count() or 1) // num_workers) if num_workers > 1 else None,
        templates=TemplateStorage(
            options["templates"],
            device_bytes=_amount(options["template_device_memory"]),
            memory_bytes=_amount(options["template_memory"]) or _available_bytes() // (4 * num_workers),
            tenant_bytes=parse_amount(options["template_disk"]).of(1),
            packing_error=options["packing_error"],
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
    if backend.card.templates:
        say(backend.card.templates)
    return backend


def _amount(text: str) -> int | None:
    return None if text == "auto" else parse_amount(text).of(1)


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
    need("takeup serve", "web", "diffusion", *(["ray"] if on_ray else []))

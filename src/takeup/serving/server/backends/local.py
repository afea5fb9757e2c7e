"""Backend in this process: opens a model by name, and runs its step loop and the threads around it."""

import hashlib
import inspect
import io
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image

from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.controlnet.workers import ControlWorker, StreamWorker, ThreadWorker
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import LoraStore, ProcessLoader, ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.contract import AddOn, DenoisingRun, Family
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.sampling import usual_pixels, usual_settings
from takeup.serving.diffusion.engine.steps import OnStep, StepEngine
from takeup.serving.diffusion.engine.stock_pipelines import StockPipeline
from takeup.serving.diffusion.engine.tiny import TINY, build
from takeup.serving.diffusion.execution.executors import DEFAULT_OPTIONS, CudaGraphExecutor, EagerExecutor, Executor
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks
from takeup.serving.diffusion.policies import MaskGrouping, one_by_one
from takeup.serving.editing.contract import Editor, EditReport, EditRequest
from takeup.serving.editing.masked.editor import MaskedEditor
from takeup.serving.editing.masked.graph_networks import can_bind
from takeup.serving.editing.masked.initial_latents import finished, pixels_of
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.model import Cancelled, Request
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, AdapterLERC
from takeup.serving.scheduling.queue import FairQueue, ReorderingQueue
from takeup.serving.server.backends import ImageFormat, ImageJob, JobHandle, ModelCard

# Chooses how a pipeline is computed on its device: CUDA graphs on CUDA, eager elsewhere -------------------------------


FP8_CAPABILITY = (8, 9)


def compute_for(device: torch.device | str, *, compiles: bool = True, eight_bits: bool = False) -> Executor:
    """The executor for networks on this device; the first images of a size are eager while there are requests."""
    if torch.device(device).type != "cuda":
        return EagerExecutor()
    return CudaGraphExecutor(DEFAULT_OPTIONS if compiles else None, eight_bits=eight_bits, eager_first=True)


def check_precision(precision: str, device: torch.device | str, family: Family) -> None:
    """Refuse eight-bit products where they cannot be computed."""
    if precision != "fp8":
        return
    if torch.device(device).type != "cuda" or torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        raise BadInput(f"precision fp8 needs a GPU with eight-bit products, found {device}; leave out --precision")
    if isinstance(family, StockPipeline):
        name = type(family.pipeline).__name__
        raise BadInput(f"precision fp8 is not supported for a {name}; leave out --precision")


def stacks_for(compute: Executor, family: Family) -> WeightStacks | None:
    """The stacks that LoRAs are merged into; None where layers are patched one by one."""
    return compute.prepared(family.network).stacks if isinstance(compute, CudaGraphExecutor) else None


def binds_edits(compute: Executor, family: Family) -> bool:
    """Whether masked edits run as CUDA graphs rather than through hooks."""
    return isinstance(compute, CudaGraphExecutor) and can_bind(compute.prepared(family.network))


def workers_for(compute: Executor, nets: Mapping[str, Any]) -> dict[str, ControlWorker]:
    """Workers for ControlNets: CUDA graphs in separate streams, or threads."""
    if isinstance(compute, CudaGraphExecutor):
        return {name: StreamWorker(net, compute) for name, net in nets.items()}
    return {name: ThreadWorker(net) for name, net in nets.items()}


# Image editing: the default editor, its storage, and the editor of pipelines that are served through their own call ---


GIBI = 2**30


@dataclass(frozen=True, slots=True)
class TemplateStorage:
    """Where templates are stored, the capacity of each tier and tenant, and the largest error of packing.

    `device_bytes` are those of an accelerator, where there is one: edits need not wait for templates that lie there.
    None: six tenths of what is free once the model is loaded.
    """

    folder: Path | None = None
    device_bytes: int | None = 0
    memory_bytes: int = GIBI
    disk_bytes: int = 64 * GIBI
    tenant_bytes: int = 8 * GIBI
    packing_error: float = 0.0


NO_TEMPLATES = TemplateStorage(memory_bytes=0)
"""Edits then compute everything, and do not depend on those before them."""


MAX_IMAGES = {"Flux2Pipeline": 8, "Flux2KleinPipeline": 4, "QwenImageEditPlusPipeline": 3}
"""Of one edit, for pipelines that take several images as references; others take one."""


class StockEditor:
    """Edits through the pipeline's own call, with the inputs it takes; outside a mask the image stays as it was."""

    add_ons: tuple[AddOn, ...] = ()

    def __init__(self, family: StockPipeline) -> None:
        self._family = family

    def prepare(self, request: Request, edit: EditRequest) -> DenoisingRun:
        """Start the pipeline's call with the image and the mask."""
        name, known = type(self._family.pipeline).__name__, self._family.parameters
        if "image" not in known:
            raise BadInput(f"a {name} makes images from texts only; serve a model that takes an image")
        if edit.mask is not None and "mask_image" not in known:
            raise BadInput(f"a {name} takes no mask; leave it out")
        image = Image.fromarray(pixels_of(edit.image))
        others = dict(request.options).get("image", ())
        inputs: dict[str, Any] = {"image": [image, *others] if others else image, "strength": edit.strength}
        if "mask_image" in known:
            inputs["mask_image"] = Image.new("L", image.size, 255) if edit.mask is None else edit.mask
            request = replace(request, height_px=image.height, width_px=image.width)
        return self._family.prepare(request, **{each: inputs[each] for each in inputs if each in known})

    def finish(self, edit: EditRequest, image: torch.Tensor) -> torch.Tensor:
        return finished(edit, image)

    def report(self, run: DenoisingRun) -> EditReport:
        """Everything is computed."""
        return EditReport(False, 1.0, 1.0, None, 0.0, len(run.timesteps))

    def forget(self, template: str) -> None:
        """Nothing is kept of images."""

    def close(self) -> None:
        """Nothing is held."""


def make_editor(family: Family, room: TemplateStorage, *, binds: bool = False) -> MaskedEditor:
    """The editor of a server; processes that share the folder share the templates. `binds`: record masked calls."""
    on_disk = 0 if room.folder is None else room.disk_bytes
    on_device = 0
    if torch.device(family.network.device).type == "cuda":
        free_bytes = torch.cuda.mem_get_info(family.network.device)[0]
        on_device = free_bytes * 6 // 10 if room.device_bytes is None else room.device_bytes
    tiers = TierCapacities(on_device, room.memory_bytes, on_disk, room.tenant_bytes)
    store = TemplateStore(AdapterLERC, tiers, room.folder, family.network.device)
    return MaskedEditor(family, store, budget=room.packing_error, identity=_bytes_of, binds=binds)


def _bytes_of(path: str) -> str:
    """Digest of the content of a LoRA; servers name LoRAs by their paths."""
    facts = Path(path).stat()
    return _digest(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1024)
def _digest(path: str, changed_ns: int, size_bytes: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Cost of the step loop: seconds of its iterations by rows, alone and with concurrent work in the same process ---------
#
# Threads that prepare and finish images share an interpreter, and perhaps a device, with the loop. So its iterations
# are classified: *alone* if no such thread computed, else *shared*, with the CPU time of these threads. From these
# counts the simulator derives the costs of steps and of the other work, and their mutual contention.

MAX_STALL_S = 300.0
"""Above it the server is not ready: a step, an encoding or a decoding hangs."""
ALONE_S = 0.0002  # a thread that wakes up and finds nothing to do
WorkStage = Literal["prepare", "finish"]


class StepLoopMeter:
    """Worker threads call `register` once and wrap work in `working`; the loop calls `record` after each iteration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: dict[int, float] = {}  # and what they said last
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._turned_s, self._beside_s = time.perf_counter(), 0.0
        self._began_s: dict[int, float] = {}

    @property
    def stalled_s(self) -> float:
        """For how long the loop has made no iteration, or the longest call in a thread has run, in seconds."""
        with self._lock:
            began_s = [self._turned_s, *self._began_s.values()]
        return time.perf_counter() - min(began_s)

    def register(self) -> None:
        """Register the calling thread as one that works concurrently with the loop."""
        if hasattr(time, "pthread_getcpuclockid"):  # elsewhere all turns count as alone
            with self._lock:
                self._clocks[time.pthread_getcpuclockid(threading.get_ident())] = 0.0

    @contextmanager
    def working(self, stage: WorkStage) -> Iterator[None]:
        """Count the processor time of the calling thread."""
        me, began_s = threading.get_ident(), time.thread_time()
        with self._lock:
            self._began_s[me] = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                del self._began_s[me]
        with self._lock:
            self._counts[f"{stage}_calls"] += 1
            self._counts[f"{stage}_seconds"] += time.thread_time() - began_s

    def record(self, num_rows: int) -> None:
        """Record the end of a loop iteration in which `num_rows` rows made a step; 0 if it was idle."""
        now_s, beside_s = time.perf_counter(), self._worked_s()
        took_s, shared_s = now_s - self._turned_s, beside_s - self._beside_s
        self._turned_s, self._beside_s = now_s, beside_s
        if not num_rows:
            return
        company = "alone" if shared_s < ALONE_S else "shared"
        with self._lock:
            self._counts[f"turns/{num_rows}/{company}"] += 1
            self._counts[f"turn_seconds/{num_rows}/{company}"] += took_s
            self._counts["beside_seconds"] += shared_s * (company == "shared")

    def numbers(self) -> Mapping[str, float]:
        """All counts and seconds so far."""
        with self._lock:
            return dict(self._counts)

    def _worked_s(self) -> float:
        for clock in list(self._clocks):
            with suppress(OSError):  # its thread is gone: what it worked stays
                self._clocks[clock] = time.clock_gettime(clock)
        return sum(self._clocks.values())


# Images generated in this process: the step loop in one thread, the work before and after it in others ----------------
#
# How it works. A job is prepared (prompt encoded, image encoded) by one pool of threads, joins the step loop, and when
# its last step is done it is decoded and written by another pool: the loop never waits for either. Both pools go round
# robin over the tenants. A failure anywhere ends the one order it belongs to.

ROWS_OF_AN_IMAGE = 2  # with guidance


class FairThreads:
    """Threads that make the work of the tenant next of which the least is being made, then of the one that waited."""

    def __init__(self, num_threads: int, name: str, start: Callable[[], None]) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name, initializer=start)
        self._waiting = FairQueue[Callable[[], object]](ReorderingQueue)
        self._lock = threading.Lock()

    def submit(self, tenant: str, act: Callable[[], object]) -> None:
        """Act in one of the threads."""
        with self._lock:
            self._waiting.add(act, (), tenant)
        self._threads.submit(self._next)

    def close(self) -> None:
        """Wait for what is being made; what waits is dropped."""
        self._threads.shutdown(cancel_futures=True)

    def _next(self) -> None:
        with self._lock:
            act, tenant = self._waiting.pop(())
            self._waiting.running[tenant] += 1
        act()
        with self._lock:
            self._waiting.running[tenant] -= 1


class LocalBackend:
    """A step engine with its add-ons, and the threads around it."""

    def __init__(
        self, engine: StepEngine, editor: Editor, card: ModelCard, store: LoraStore, num_threads: int = 2
    ) -> None:
        self.engine, self._editor, self._card, self._store = engine, editor, card, store
        self._meter = meter = StepLoopMeter()
        self._before = FairThreads(num_threads, "prepare", meter.register)
        self._after = FairThreads(num_threads, "finish", meter.register)
        self._elsewhere: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._num_steps = 0
        self._num_rows = 0
        self._num_open = 0
        self._counting = threading.Lock()
        engine.elsewhere = self._rows_elsewhere
        self._loop = threading.Thread(target=engine.run, args=(self._on_iteration,), name="step-loop", daemon=True)
        self._loop.start()

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def is_ready(self) -> bool:
        return self._loop.is_alive() and not self._stopped.is_set() and self._meter.stalled_s < MAX_STALL_S

    @property
    def loras(self) -> frozenset[str]:
        return self._store.names

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        order = JobHandle(job, on_step)
        self._store.ahead = job.ahead
        self._count(1)
        order.done.add_done_callback(lambda _: self._count(-1))
        self._submit(self._before, order, self._begin)
        return order

    def forget(self, name: str) -> None:
        self._store.forget(name)
        self._editor.forget(name)

    def pin(self, name: str, *, is_pinned: bool) -> None:
        self._store.pin(name, is_pinned=is_pinned)

    def numbers(self) -> Mapping[str, float]:
        return {
            "steps": self._num_steps,
            "network_calls": self.engine.num_calls,
            "adapter_loads": self._store.num_loads,
            "adapter_bytes": self._store.size_bytes,
            "running": self._num_open,
            **self._meter.numbers(),
        }

    def close(self) -> None:
        """Stop the loop at the next step boundary; weights are as they were loaded afterwards."""
        self._stopped.set()
        self._before.close()
        self._loop.join()
        self._after.close()
        _close_all(self.engine)
        self._editor.close()

    def _begin(self, order: JobHandle) -> None:
        """In a thread of `before`."""
        if order.is_cancelled:
            raise Cancelled("the request was cancelled before its first step")
        with self._meter.working("prepare"):
            run = self._prepared(order.job)
        ticket = self.engine.enter(run, self._counted(run, order.on_step))
        order.on_cancel = ticket.cancel
        if order.is_cancelled:
            ticket.cancel()
        ticket.finished.add_done_callback(lambda finished: self._ended(order, finished))

    def _prepared(self, job: ImageJob) -> DenoisingRun:
        request = job.request
        if job.within_s is not None:
            request = replace(request, deadline_s=time.monotonic() + job.within_s)
        if job.edit is not None:
            return self._editor.prepare(request, job.edit)
        return self.engine.family.prepare(request)

    def _on_iteration(self) -> bool:
        """In the step loop, between two iterations: whether to stop."""
        num_rows, self._num_rows = self._num_rows, 0
        self._meter.record(num_rows)
        return self._stopped.is_set()

    def _counted(self, run: DenoisingRun, on_step: OnStep) -> OnStep:
        def heard(step: int, num_steps: int) -> None:
            self._num_steps += 1  # only the loop counts
            self._num_rows += run.num_rows
            on_step(step, num_steps)

        return heard

    def _ended(self, order: JobHandle, finished: Future[DenoisingRun]) -> None:
        """In the step loop: pass the run on to `after` without waiting."""
        problem = finished.exception()
        if problem is not None:
            order.fail(problem)
        elif self._stopped.is_set():
            order.fail(Cancelled("the server was stopped"))
        else:
            self._submit(self._after, order, partial(self._finish, finished.result()))

    def _finish(self, run: DenoisingRun, order: JobHandle) -> None:
        """In a thread of `after`."""
        with self._meter.working("finish"):
            job, image, report = order.job, self.engine.family.decode(run), None
            if job.edit is not None:
                image, report = self._editor.finish(job.edit, image), self._editor.report(run)
            picture = encode_image(image[0], job.format, job.quality)
        order.finish(picture, report)

    def _submit(self, threads: FairThreads, order: JobHandle, act: Callable[[JobHandle], None]) -> None:
        """Act in a thread; until it is done the image counts in the turns of the step loop."""
        tenant = order.job.request.tenant
        self._count(0, tenant, 1)

        def acted() -> None:
            try:
                act(order)
            except BaseException as problem:
                order.fail(problem)
            finally:
                self._count(0, tenant, -1)

        threads.submit(tenant, acted)

    def _count(self, change: int, tenant: str = "", elsewhere: int = 0) -> None:
        with self._counting:
            self._num_open += change
            if elsewhere:
                self._elsewhere[tenant] += elsewhere

    def _rows_elsewhere(self) -> Mapping[str, int]:
        """In the step loop: rows of the images that are encoded or decoded, by tenant."""
        with self._counting:
            return {tenant: ROWS_OF_AN_IMAGE * number for tenant, number in self._elsewhere.items() if number > 0}


def encode_image(image: torch.Tensor, kind: ImageFormat, quality: int) -> bytes:
    """The file of one decoded image (values from 0 to 1, channels first)."""
    if not torch.isfinite(image).all():
        raise BadInput("the image has numbers that are not finite; use weaker LoRAs, guidance or ControlNets")
    pixels = (image.float().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    file = io.BytesIO()
    options: dict[str, Any] = {} if kind == "png" else {"quality": quality}
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def _close_all(engine: StepEngine) -> None:
    """Close the add-ons that can be closed."""
    for add_on in engine.add_ons:
        if isinstance(add_on, Loras | Controls):
            add_on.close()


# Models by name, and a backend that serves one of them in this process ------------------------------------------------

BUILTIN_PREFIX = "takeup/"


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """How to serve a model: enough for another process, or another machine, to do the same."""

    model: str
    device: str = "auto"
    controlnets: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = False
    max_rows: int = 16
    control_change: float = 0.0
    cache_bytes: int = 2 * 2**30
    cache_policy: str = "lerc"
    reads_in_process: bool = False
    num_cpu_threads: int | None = None
    templates: TemplateStorage = field(default_factory=TemplateStorage)
    checks_safety: bool = True
    precision: str = "auto"

    def build(self) -> LocalBackend:
        """Load the model and start its step loop."""
        if self.num_cpu_threads is not None:
            torch.set_num_threads(self.num_cpu_threads)
        if self.cache_policy not in ADAPTER_POLICIES:
            raise UnknownName("policy of the adapter cache", self.cache_policy, ADAPTER_POLICIES)
        pipeline = open_model(self.model, self.device)
        if not self.checks_safety:
            pipeline.safety_checker = pipeline.watermark = None
        family, targets = family_of(pipeline), LoraTargets.of(pipeline)
        check_precision(self.precision, pipeline.device, family)
        usual = usual_pixels(pipeline), *usual_settings(pipeline, self.model)
        if isinstance(family, StockPipeline):
            return self._stock_backend(family, usual)
        nets = self._controlnets(pipeline)
        store = self._store(targets)
        eight_bits = self.precision == "fp8"
        compute = EagerExecutor() if self.deterministic else compute_for(pipeline.device, eight_bits=eight_bits)
        room = NO_TEMPLATES if self.deterministic else self.templates
        editor = make_editor(family, room, binds=binds_edits(compute, family))
        loras = Loras(family, store, stacks=stacks_for(compute, family))
        add_ons: list[AddOn] = [loras, *editor.add_ons]
        if nets:
            add_ons.append(Controls(family, nets, workers_for(compute, nets), max_change=self.control_change))
        group = one_by_one if self.deterministic else MaskGrouping(self.max_rows)
        engine = StepEngine(pipeline, add_ons=add_ons, group=group, compute=compute)
        card = ModelCard(type(pipeline).__name__, targets, tuple(nets), *usual, **effects_of(family))
        if card.usual_pixels and not self.deterministic:
            card = replace(card, templates=editor.templates_held(card.num_steps, card.usual_pixels))
        return LocalBackend(engine, editor, card, store)

    def _stock_backend(self, family: StockPipeline, usual: tuple[int, int, float]) -> LocalBackend:
        """For pipelines that are served through their own call: LoRAs change their denoiser only."""
        name = type(family.pipeline).__name__
        if self.controlnets:
            raise BadInput(f"ControlNets of requests are not supported for a {name}; leave out --controlnet")
        group = one_by_one if self.deterministic else MaskGrouping(self.max_rows)
        targets = LoraTargets.of(family.pipeline, has_text=False)
        store = self._store(targets)
        engine = StepEngine(family.pipeline, add_ons=[Loras(family, store)], group=group, family=family)
        card = ModelCard(name, targets, (), *usual, max_images=MAX_IMAGES.get(name, 1), **effects_of(family))
        return LocalBackend(engine, StockEditor(family), card, store)

    def _store(self, targets: LoraTargets) -> LoraStore:
        read = ProcessLoader if self.reads_in_process else ThreadLoader
        return LoraStore(read(AdapterPaths(), targets), ADAPTER_POLICIES[self.cache_policy], self.cache_bytes)

    def _controlnets(self, pipeline: Any) -> dict[str, Any]:
        """Those of the pipeline itself, as `control-1` and so on, and those that were named."""
        own = getattr(pipeline, "controlnet", None)
        inside = [] if own is None else list(getattr(own, "nets", [own]))
        nets = {f"control-{number}": net for number, net in enumerate(inside, start=1)}
        for name, where in self.controlnets.items():
            nets[name] = _pretrained("ControlNetModel", where).to(pipeline.device, pipeline.dtype)
        return nets


def effects_of(family: Family) -> dict[str, Any]:
    """Which fields of a request have no effect, and which the negative prompt needs; as in `ModelCard`."""
    parameters = inspect.signature(type(family.pipeline).__call__).parameters
    if "true_cfg_scale" not in parameters:
        return {"unused": family.unused}
    return {
        "unused": family.unused,
        "negative_needs": "true_guidance",
        "true_guidance": float(parameters["true_cfg_scale"].default),
    }


class AdapterPaths(Mapping[str, Path]):
    """LoRAs named by their own paths. The API hands out such names itself, never a client."""

    def __getitem__(self, name: str) -> Path:
        return Path(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and Path(name).is_file()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def open_model(name: str, device: str = "auto") -> Any:
    """The pipeline of this name: a built-in one, a folder in diffusers format, or one of the hub."""
    on = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if name.startswith(BUILTIN_PREFIX):
        pipeline = build(name)  # an unknown one of ours is answered with the nearest
    elif Path(name).exists() or name.count("/") == 1:
        pipeline = _pretrained("DiffusionPipeline", name, torch_dtype=torch.float32 if on == "cpu" else torch.bfloat16)
    else:
        raise BadInput(
            f"no model {name!r}: there is no such folder; give one that diffusers wrote, a hub id such as "
            f"owner/name, or one of {', '.join(TINY)}"
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(on)


def _pretrained(kind: str, where: str, **options: Any) -> Any:
    """From a folder or the hub; safetensors only, for other formats can run code."""
    diffusers = import_module("diffusers")
    offline = Path(where).exists() or os.environ.get("HF_HUB_OFFLINE") == "1"
    try:
        return getattr(diffusers, kind).from_pretrained(
            where, use_safetensors=True, local_files_only=offline, **options
        )
    except Exception as problem:  # hub, files, network: each has errors of its own
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise BadInput(
            f"the model {where!r} could not be opened ({reason}); give a folder that diffusers wrote with "
            f"safetensors, connect to the hub, or try {BUILTIN_PREFIX}tiny-sdxl"
        ) from problem

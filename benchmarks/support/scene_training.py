"""Training of the scene models from rendered pictures: VAE, denoisers, guidance, ControlNets, LoRAs.

How it works: scenes are drawn from a seed and rendered in batches on the device. The VAE learns from the pictures;
its latents of a pool of captioned scenes are computed once. A denoiser and its text encoders learn from that pool: the
U-Net predicts velocities down to pure noise, the transformer follows rectified flow and then learns to answer in one
pass what classifier-free guidance answers in two. Each part keeps a moving average of its weights and stops after the
seconds it was given.
"""

import copy
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.support import scene_networks as networks
from benchmarks.support.scene_scores import paint
from takeup.scenes import models, world
from takeup.scenes.judge import judge
from takeup.scenes.render import STYLES, edge_map, render, segments, tensors
from takeup.scenes.world import COLOURS, MOST, PLACES, SHAPES, SIZES, TEXTURES, Scenes

TRAINING_SEED, POOL_SEED, TEST_SEED = 1, 2, 3
EMPTY_SHARE, ZERO_SHARE, LONG_SHARE = 0.06, 0.06, 0.05  # of captions that are dropped, and of batches with long prompts
LONG_PROMPT = 512  # tokens; FluxPipeline pads its T5 prompt to as many by default
GUIDANCES = (1.0, 5.0)
LAYOUT_WEIGHT = 0.3  # of the loss of `LayoutHead`
VAE_FILE = "vae.safetensors"
KINDS_OF_PICTURES = {3: "shadow", 7: "shadow", 11: "shadow", 14: "night", 15: "edges"}  # of sixteen batches for the VAE


@dataclass
class Settings:
    """Where and how long to train; seconds of a part that is 0 are skipped."""

    out: Path
    device: str = "cpu"
    size: str = "full"
    batch: int = 512
    pool: int = 262_144
    seed: int = 0
    learning_rate: float = 1e-3
    steps: int = 20  # of the sampler, when judged
    judged: int = 64  # held-out captions judged while training
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """Whether to compute in bfloat16 on a GPU."""
        return self.device.startswith("cuda")

    def cast(self) -> Any:
        """bfloat16 products on a GPU, float32 elsewhere."""
        return torch.autocast("cuda", torch.bfloat16, enabled=self.is_cuda)

    def log(self, **values: Any) -> None:
        """One line of JSON on the standard output and in `train.jsonl`."""
        line = json.dumps({"at": time.strftime("%H:%M:%S"), **values})
        print(line, flush=True)
        with (self.out / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


# The loop that all parts share ------------------------------------------------------------------------------------


class Average:
    """The exponential moving average of parameters."""

    def __init__(self, parameters: Iterable[Any], most: float = 0.999) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.kept = [p.detach().clone() for p in self.parameters]
        self.most, self.steps = most, 0

    def update(self) -> None:
        """Move towards the parameters; faster in the beginning."""
        self.steps += 1
        weight = 1 - min(self.most, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.kept, [p.detach() for p in self.parameters], weight)

    def swap(self) -> None:
        """Exchange the average and the parameters."""
        for parameter, kept in zip(self.parameters, self.kept, strict=True):
            held = parameter.detach().clone()
            parameter.data.copy_(kept)
            kept.copy_(held)


class Muon:
    """Momentum, made orthogonal by Newton-Schulz iterations (Jordan et al. 2024), for all matrices of a shape at once.

    Scaled to the size of AdamW's steps, so that both take the same learning rate.
    """

    def __init__(self, matrices: Iterable[Any]) -> None:
        self.groups: dict[tuple[int, int], list[Any]] = {}
        for matrix in matrices:
            self.groups.setdefault(tuple(matrix.shape), []).append(matrix)
        self.momenta = {shape: torch.zeros_like(torch.stack(group)) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move all matrices against their momentum."""
        for shape, group in self.groups.items():
            gradient = torch.stack([matrix.grad for matrix in group])
            momentum = self.momenta[shape].lerp_(gradient, 0.05)
            update = orthogonal(gradient.lerp(momentum, 0.95)).float()
            torch._foreach_mul_(group, 1 - 0.01 * rate)
            torch._foreach_add_(group, list(update.unbind()), alpha=-0.2 * rate * max(shape) ** 0.5)


def orthogonal(matrices: Any) -> Any:
    """Matrices [n, rows, columns] with their singular values moved to about 1."""
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal(matrices.mT).mT
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def fit(
    settings: Settings,
    part: str,
    parameters: Iterable[Any],
    loss: Callable[[], Any],
    check: Callable[[], dict[str, Any]] | None = None,
    rate: float = 1.0,
    matrices: Iterable[Any] = (),
) -> list[float]:
    """Train for the part's seconds and leave the average in place; returns the smoothed loss at every tenth.

    `matrices`, a part of the parameters, are moved by `Muon`, all others by AdamW.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)  # gave not-a-number at lengths that are no multiple of 64
    trained = [p for p in parameters if p.requires_grad]
    limit, average = settings.seconds[part], Average(trained)
    muon, by_muon = Muon(matrices), {id(matrix) for matrix in matrices}
    others = [p for p in trained if id(p) not in by_muon]
    optimizer = torch.optim.AdamW(others, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01, fused=settings.is_cuda)
    start, step, smoothed, losses, told = time.perf_counter(), 0, 0.0, [], 0
    while (share := (time.perf_counter() - start) / limit) < 1:
        lr = optimizer.param_groups[0]["lr"] = settings.learning_rate * rate * _schedule(share, step)
        with settings.cast():
            value = loss()
        for parameter in trained:
            parameter.grad = None
        value.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        muon.step(2 * lr)
        average.update()
        step += 1
        if step % 10 == 0 or step <= 10:  # reading the loss waits for the device, so that the clock is right
            smoothed = value.item() if step == 1 else smoothed + (value.item() - smoothed) * min(0.2, 2 / step)
            if not math.isfinite(smoothed):
                raise ArithmeticError(f"the loss of {part} is {smoothed} after {step} steps; a finite loss is expected")
        if share * 10 >= told + 1:
            told = int(share * 10)
            losses.append(smoothed)
            found = _checked(check, average) if check and told == 5 else {}
            settings.log(
                part=part, step=step, seconds=round(time.perf_counter() - start), loss=round(smoothed, 5), **found
            )
    losses.append(smoothed)
    average.swap()
    settings.log(part=part, steps=step, loss=round(smoothed, 5), **(check() if check else {}))
    return losses


def _schedule(share: float, step: int) -> float:
    """Warm-up over 100 steps, constant, then a linear decline over the last 40 % of the time."""
    return min(1.0, (step + 1) / 100) * max(0.01, min(1.0, (1 - share) / 0.4))


def _checked(check: Callable[[], dict[str, Any]], average: Average) -> dict[str, Any]:
    average.swap()
    try:
        return check()
    finally:
        average.swap()


# VAE --------------------------------------------------------------------------------------------------------------


def train_vae(settings: Settings) -> list[float]:
    """Train the VAE on pictures, some in the styles or as edge maps, and save it with the scale of its latents."""
    torch.manual_seed(settings.seed)
    vae = networks.build_vae(settings.size).to(settings.device, memory_format=torch.channels_last)
    batches = _pictures(settings, max(settings.batch // 4, 2))
    losses = fit(
        settings, "vae", vae.parameters(), lambda: _vae_loss(vae, next(batches)), lambda: judge_vae(settings, vae)
    )
    with torch.no_grad():
        latents = torch.cat([vae.encode(next(batches)).latent_dist.mean for _ in range(4)])
    weights = networks.weights_of({"vae": vae})
    scale = {"mean": str(latents.mean().item()), "deviation": str(latents.std().item())}
    settings.log(part="vae", saved=VAE_FILE, **scale)
    save_file(weights, settings.out / VAE_FILE, metadata=scale)
    return losses


def train_decoder(settings: Settings) -> list[float]:
    """Train the VAE's decoder further; its encoder, and so the latents that denoisers learn from, stay."""
    vae = load_vae(settings, "flux")
    vae.decoder.requires_grad_(True)
    batches = _pictures(settings, max(settings.batch // 4, 2), seed=9)
    losses = fit(
        settings,
        "vae-decoder",
        vae.decoder.parameters(),
        lambda: _vae_loss(vae, next(batches)),
        lambda: judge_vae(settings, vae),
        rate=0.6,
    )
    scale = {"mean": str(vae.config.shift_factor), "deviation": str(1 / vae.config.scaling_factor)}
    save_file(networks.weights_of({"vae": vae}), settings.out / VAE_FILE, metadata=scale)
    return losses


def _pictures(settings: Settings, number: int, seed: int = 0) -> Iterator[Any]:
    for step in range(10**9):
        scenes = tensors(world.sample((TRAINING_SEED, settings.seed + seed, step), number), settings.device)
        kind = KINDS_OF_PICTURES.get(step % 16)
        yield (edge_map(scenes, torch) if kind == "edges" else render(scenes, torch, style=kind)) * 2 - 1


def _vae_loss(vae: Any, images: Any) -> Any:
    """Absolute error of pixels and of their differences, and a weak pull of the latents towards a normal."""
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.set_grad_enabled(vae.encoder.conv_in.weight.requires_grad):
        posterior = vae.encode(images).latent_dist
    decoded = vae.decode(posterior.sample()).sample.float()
    error = decoded - images
    slopes = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
    return error.abs().mean() + slopes + 2 * (error**2).mean() + 2e-5 * posterior.kl().mean() / 1024


@torch.no_grad()
def judge_vae(settings: Settings, vae: Any) -> dict[str, Any]:
    """The judge's shares for reconstructions of held-out scenes: what no denoiser can exceed."""
    scenes = world.sample(TEST_SEED, settings.judged, held_out=True)
    images = render(tensors(scenes, settings.device), torch)
    with settings.cast():
        decoded = vae.decode(vae.encode(images * 2 - 1).latent_dist.mean).sample.float()
    error = ((decoded / 2 + 0.5 - images) ** 2).mean().item()
    found = judge((decoded / 2 + 0.5).clamp(0, 1).cpu().numpy(), scenes).shares()
    return {"psnr_db": round(-10 * math.log10(error), 2), **_rounded(found)}


def load_vae(settings: Settings, family: str) -> Any:
    """The trained VAE, frozen, with the scale of a family."""
    from safetensors import safe_open

    path, vae = settings.out / VAE_FILE, networks.build_vae(settings.size)
    networks.set_weights({"vae": vae}, load_file(path))
    with safe_open(path, "pt") as file:
        scale = file.metadata()
    vae = networks.scaled_vae(vae, family, float(scale["mean"]), float(scale["deviation"]))
    return vae.to(settings.device, memory_format=torch.channels_last).requires_grad_(False).eval()


# Data of the denoisers --------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """Captioned scenes on the device: columns, latents in units of the denoiser, tokens of both tokenizers."""

    scenes: Scenes
    latents: Any
    clip: Any
    t5: Any

    def draw(self, number: int) -> Any:
        """Random positions."""
        return torch.randint(0, len(self.latents), (number,), device=self.latents.device)


def make_pool(
    settings: Settings, vae: Any, number: int, seed: int, vague: float = 0.1, style: str | None = None
) -> Pool:
    """Render, encode and tokenize `number` training scenes."""
    scenes = world.sample((POOL_SEED, settings.seed, seed), number)
    clip, t5 = tokenize(world.captions(scenes, np.random.default_rng((settings.seed, seed)), vague))
    moved, latents = tensors(scenes, settings.device), []
    for first in range(0, number, 512):
        latents.append(encode(settings, vae, render(moved[slice(first, first + 512)], torch, style=style)))
    return Pool(moved, torch.cat(latents), torch.tensor(clip).to(settings.device), torch.tensor(t5).to(settings.device))


@torch.no_grad()
def encode(settings: Settings, vae: Any, images: Any) -> Any:
    """Scaled latents of pictures in 0..1."""
    with settings.cast():
        mean = vae.encode(images * 2 - 1).latent_dist.mean
    latents = (mean.float() - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor
    return latents.to(torch.bfloat16 if settings.is_cuda else torch.float32)


def tokenize(captions: Iterable[str]) -> tuple[Any, Any]:
    """What the two tokenizers give for captions, padded to 48; a lookup of words, so that 100,000 take seconds."""
    clip, t5 = networks.clip_tokenizer(), networks.t5_tokenizer()
    of_clip = {word: clip(word).input_ids[1] for word in world.WORDS}
    of_t5 = {word: t5.convert_tokens_to_ids("▁" + word if word != "," else word) for word in world.WORDS}
    start, end = clip(" ").input_ids[:2]
    words = [re.findall(r"[a-z]+|,", caption) for caption in captions]
    first = np.full((len(words), models.MAX_TOKENS), end, np.int64)
    second = np.zeros((len(words), models.MAX_TOKENS), np.int64)
    for row, found in enumerate(words):
        first[row, : len(found) + 1] = [start, *(of_clip[word] for word in found)]
        second[row, : len(found) + 1] = [*(of_t5[word] for word in found), 1]
    return first, second


# Denoisers --------------------------------------------------------------------------------------------------------


class CaptionReader(nn.Module):
    """Reads from the text encoder's tokens what is at each of the nine places, and the background.

    Its cross entropy is what the text encoder learns from before the denoiser does: words of one object find each
    other in seconds of text alone. The saved networks do not contain it.
    """

    SIZES = (len(SHAPES) + 1, len(COLOURS), len(SIZES), len(TEXTURES))

    def __init__(self, width: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, len(PLACES) + 1, width) * 0.2)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.objects, self.ground = nn.Linear(width, sum(self.SIZES)), nn.Linear(width, 3 * 4)

    def loss(self, tokens: Any, scenes: Scenes) -> Any:
        """The cross entropy of shapes, colours, sizes and textures by place, and of the background."""
        found = self.attention(self.places.expand(len(tokens), -1, -1), tokens, tokens, need_weights=False)[0].float()
        wanted = self.wanted(scenes)
        there, parts = wanted[..., 0] > 0, self.objects(found[:, :-1]).split(self.SIZES, -1)
        loss = F.cross_entropy(parts[0].flatten(0, 1), wanted[..., 0].flatten())
        for n, part in enumerate(parts[1:], 1):
            loss = loss + F.cross_entropy(part[there], wanted[there][:, n])
        grounds = self.ground(found[:, -1]).split(4, -1)
        return loss + sum(F.cross_entropy(part, scenes.ground[:, n]) for n, part in enumerate(grounds))

    @staticmethod
    def wanted(scenes: Scenes) -> Any:
        """1 + shape, colour, size and texture at each place, [n, 9, 4]; zeros where nothing is."""
        told = torch.stack([scenes.shape + 1, scenes.colour, scenes.size, scenes.texture], -1)
        wanted = told.new_zeros(len(told), len(PLACES), 4)
        for k in range(MOST):
            rows = (scenes.count > k).nonzero()[:, 0]
            wanted[rows, scenes.place[rows, k]] = told[rows, k]
        return wanted


class LayoutHead(nn.Module):
    """Reads from image tokens in the middle of the transformer which colour of object covers each latent pixel.

    Its cross entropy is added while the base learns: which object belongs where is learned in fewer steps than from
    the prediction error alone, most of which comes from noise. The saved networks do not contain it.
    """

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        block = transformer.single_transformer_blocks[transformer.config.num_single_layers // 3]
        block._compiled_call_impl = None  # a compiled block may be one that was compiled without the hook
        self.read = nn.Linear(transformer.inner_dim, 4 * (len(COLOURS) + 1))
        self.seen: dict[str, Any] = {}
        self.hook = block.register_forward_hook(lambda _block, _inputs, outputs: self.seen.update(tokens=outputs[1]))

    def loss(self, scenes: Scenes, side: int) -> Any:
        """The cross entropy of the last batch that the transformer saw; `side` in latent pixels."""
        covered = segments(scenes, torch, side=side).long()
        colour = F.pad(scenes.colour + 1, (1, 0)).long()
        wanted = colour.gather(1, covered.flatten(1)).view(len(colour), 1, side, side)
        found = self.read(self.seen.pop("tokens"))
        return F.cross_entropy(_unpacked(found).float(), wanted[:, 0])


class Trainee:
    """The networks of a family with what their loss needs; `control` and LoRA layers are added to it later."""

    def __init__(self, settings: Settings, family: str) -> None:
        torch.manual_seed(settings.seed + 1)
        self.settings, self.family = settings, family
        self.vae = load_vae(settings, family)
        self.nets = networks.build(family, settings.size)
        for net in self.nets.values():
            net.to(settings.device)
        if family == "sdxl":
            self.denoiser.to(memory_format=torch.channels_last)
        self.compile()
        self.control: Any = None
        self.layout: LayoutHead | None = None
        empty = tokenize([""])
        self.empty = [torch.tensor(ids, device=settings.device) for ids in empty]
        self.alphas = networks.scheduler_of("sdxl").alphas_cumprod.to(settings.device)

    @property
    def denoiser(self) -> Any:
        """The U-Net or the transformer."""
        return self.nets[networks.DENOISER[self.family]]

    @property
    def path(self) -> Path:
        """Where the networks are saved."""
        return self.settings.out / f"{self.family}.safetensors"

    def compile(self) -> None:
        """Compile the blocks of the denoiser on a GPU; a block is compiled once for each length of the prompt."""
        if self.settings.is_cuda:
            self.denoiser.compile_repeated_blocks(dynamic=False)

    def parameters(self) -> list[Any]:
        """Of all networks."""
        return [parameter for net in self.nets.values() for parameter in net.parameters()]

    def train(self, mode: bool) -> None:
        """Let all networks learn, or freeze them."""
        for net in self.nets.values():
            net.train(mode).requires_grad_(mode)

    def save(self) -> None:
        """Write the networks in half precision."""
        save_file(networks.weights_of(self.nets), self.path)

    def resume(self) -> bool:
        """Continue from saved networks, if there are any."""
        if self.path.exists():
            networks.set_weights(self.nets, load_file(self.path))
        return self.path.exists()

    # Losses

    def loss(self, pool: Pool, number: int) -> Any:
        """The denoising error of one batch; the pipeline's callers choose how far prompts of T5 are padded."""
        if self.family == "flux" and torch.rand(()) < LONG_SHARE:
            with eagerly():
                return self._loss(pool, max(number // 4, 1), LONG_PROMPT)
        return self._loss(pool, number, models.MAX_TOKENS)

    def _loss(self, pool: Pool, number: int, length: int) -> Any:
        at = pool.draw(number)
        latents, noise = pool.latents[at].float(), torch.randn(len(at), *pool.latents.shape[1:], device=at.device)
        drop = torch.rand(len(at), 1, device=at.device)
        tokens = [
            torch.where(drop < EMPTY_SHARE, empty, ids[at])
            for ids, empty in zip((pool.clip, pool.t5), self.empty, strict=True)
        ]
        tokens[1] = F.pad(tokens[1], (0, length - models.MAX_TOKENS))
        cond = self.read(tokens[0], tokens[1], zero=drop[:, 0] > 1 - ZERO_SHARE)
        edges = self.control_input(pool.scenes[at]) if self.control is not None else None
        noised, t, target = self.noised(latents, noise)
        error = F.mse_loss(self.predict(noised, t, cond, edges=edges).float(), target)
        if self.layout is None:
            return error
        return error + LAYOUT_WEIGHT * self.layout.loss(pool.scenes[at], latents.shape[-1])

    def noised(self, latents: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Latents with noise, the time and what is to be predicted."""
        if self.family == "flux":
            t = torch.sigmoid(torch.randn(len(latents), device=latents.device) + 0.3)
            wide = t[:, None, None, None]
            return (1 - wide) * latents + wide * noise, t, noise - latents
        t = torch.randint(0, len(self.alphas), (len(latents),), device=latents.device)
        alpha = self.alphas[t][:, None, None, None]
        return (
            alpha.sqrt() * latents + (1 - alpha).sqrt() * noise,
            t,
            alpha.sqrt() * noise - (1 - alpha).sqrt() * latents,
        )

    def read(self, clip: Any, t5: Any, zero: Any = None) -> tuple[Any, Any]:
        """Hidden states and the pooled vector of captions; zeros where the U-Net is to learn without a caption."""
        first = self.nets["text_encoder"](clip, output_hidden_states=True)
        if self.family == "flux":
            return self.nets["text_encoder_2"](t5)[0], first.pooler_output
        second = self.nets["text_encoder_2"](clip, output_hidden_states=True)
        hidden, pooled = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1), second.text_embeds
        if zero is not None:
            hidden, pooled = hidden * ~zero[:, None, None], pooled * ~zero[:, None]
        return hidden, pooled

    def predict(self, latents: Any, t: Any, cond: tuple[Any, Any], guidance: Any = None, edges: Any = None) -> Any:
        """The denoiser's answer, with the ControlNet if there are edges."""
        if self.family == "sdxl":
            size = torch.tensor([128, 128, 0, 0, 128, 128], device=latents.device).expand(len(latents), 6)
            added = {"text_embeds": cond[1], "time_ids": size}
            more: dict[str, Any] = {}
            if edges is not None:
                down, mid = self.control(latents, t, cond[0], edges, added_cond_kwargs=added, return_dict=False)
                more = {"down_block_additional_residuals": down, "mid_block_additional_residual": mid}
            return self.denoiser(latents, t, cond[0], added_cond_kwargs=added, **more).sample
        return _unpacked(self._transform(_packed(latents), t, cond, guidance, edges))

    def _transform(self, tokens: Any, t: Any, cond: tuple[Any, Any], guidance: Any, edges: Any) -> Any:
        side = math.isqrt(tokens.shape[1])
        grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
        call = {
            "timestep": t,
            "guidance": torch.ones_like(t) if guidance is None else guidance,
            "pooled_projections": cond[1],
            "encoder_hidden_states": cond[0],
            "txt_ids": torch.zeros(cond[0].shape[1], 3, device=tokens.device),
            "img_ids": F.pad(grid, (1, 0)).float().to(tokens.device),
            "return_dict": False,
        }
        if edges is not None:
            double, single = self.control(tokens, _packed(edges), **call)
            call |= {"controlnet_block_samples": double, "controlnet_single_block_samples": single}
        return self.denoiser(tokens, **call)[0]

    def control_input(self, scenes: Scenes) -> Any:
        """Edge maps as the family's ControlNet takes them: pictures, or latents of pictures."""
        edges = edge_map(scenes, torch)
        return edges if self.family == "sdxl" else encode(self.settings, self.vae, edges).float()

    # Guidance

    def guided_loss(self, teacher: "Trainee", pool: Pool, number: int) -> Any:
        """How far one pass with a guidance value is from the teacher's two passes, with and without the caption."""
        at = pool.draw(number)
        latents, noise = pool.latents[at].float(), torch.randn(len(at), *pool.latents.shape[1:], device=at.device)
        noised, t, _ = self.noised(latents, noise)
        low, high = GUIDANCES
        guidance = low + (high - low) * torch.rand(len(at), device=at.device)
        with torch.no_grad():
            cond = self.read(pool.clip[at], pool.t5[at])
            empty = [ids.expand(len(at), -1) for ids in self.empty]
            without = teacher.predict(noised, t, self.read(*empty)).float()
            target = without + guidance[:, None, None, None] * (teacher.predict(noised, t, cond).float() - without)
        return F.mse_loss(self.predict(noised, t, cond, guidance).float(), target)

    # Judging

    def pipeline(self) -> Any:
        """The stock pipeline of copies of the networks, in float32."""
        nets = {name: copy.deepcopy(net).float() for name, net in self.nets.items()}
        return networks.assemble(self.family, copy.deepcopy(self.vae), nets).to(self.settings.device)

    def judged(self) -> dict[str, Any]:
        """The judge's shares for held-out captions."""
        self.save()
        scenes = world.sample(TEST_SEED, self.settings.judged, held_out=True).centred()
        with eagerly():
            images = paint(self.pipeline(), world.captions(scenes), self.settings.steps)
        return _rounded(judge(images, scenes).shares())


def eagerly() -> Any:
    """A context in which nothing is compiled: compiling takes longer than a few calls of another shape."""
    return torch.compiler.set_stance("force_eager")


def _packed(latents: Any) -> Any:
    """Two by two latent pixels become one token."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, c * 4)


def _unpacked(tokens: Any) -> Any:
    n, area, c = tokens.shape
    side = math.isqrt(area)
    return tokens.view(n, side, side, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(n, c // 4, side * 2, side * 2)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in values.items()}


# Parts of a family ------------------------------------------------------------------------------------------------


def train_text(trainee: Trainee, pool: Pool) -> list[float]:
    """The T5 encoder alone, from captions without pictures."""
    encoder = trainee.nets["text_encoder_2"].train().requires_grad_(True)
    reader = CaptionReader(encoder.config.d_model).to(trainee.settings.device)

    def loss() -> Any:
        at = pool.draw(2 * trainee.settings.batch)
        return reader.loss(encoder(pool.t5[at])[0], pool.scenes[at])

    return fit(trainee.settings, "flux-text", [*encoder.parameters(), *reader.parameters()], loss, rate=2.0)


def train_base(trainee: Trainee, pool: Pool) -> list[float]:
    """Denoiser and text encoders together."""
    trainee.train(True)
    batch, parameters = trainee.settings.batch, trainee.parameters()
    matrices: list[Any] = []
    if trainee.family == "flux":
        trainee.layout = LayoutHead(trainee.denoiser).to(trainee.settings.device)
        parameters += trainee.layout.parameters()
        matrices = [p for name, p in trainee.denoiser.named_parameters() if "blocks." in name and p.ndim == 2]
    losses = fit(
        trainee.settings,
        f"{trainee.family}-base",
        parameters,
        lambda: trainee.loss(pool, batch),
        trainee.judged,
        matrices=matrices,
    )
    if trainee.layout is not None:
        trainee.layout.hook.remove()
        trainee.layout = None
    trainee.train(False)
    trainee.save()
    return losses


def train_guidance(trainee: Trainee, pool: Pool) -> list[float]:
    """The transformer learns guidance values from its own predictions with and without captions."""
    teacher = copy.copy(trainee)
    teacher.nets = copy.deepcopy(trainee.nets)
    teacher.compile()
    trainee.denoiser.requires_grad_(True)
    batch = trainee.settings.batch
    losses = fit(
        trainee.settings,
        f"{trainee.family}-guidance",
        trainee.denoiser.parameters(),
        lambda: trainee.guided_loss(teacher, pool, batch),
        trainee.judged,
        rate=0.4,
    )
    trainee.train(False)
    trainee.save()
    return losses


def train_control(trainee: Trainee) -> list[float]:
    """A ControlNet on captions most of which leave shapes and sizes to the edge map."""
    settings, is_flux = trainee.settings, trainee.family == "flux"
    pool = make_pool(settings, trainee.vae, max(settings.pool // 4, 8), seed=77, vague=0.85 if is_flux else 0.7)
    trainee.control = networks.build_controlnet(trainee.family, trainee.denoiser).to(settings.device)
    trainee.control.train().requires_grad_(True)
    parameters, matrices = list(trainee.control.parameters()), []
    if is_flux:  # whose two layers of zeros, before and after, learn slowly by themselves
        trainee.layout = LayoutHead(trainee.denoiser).to(settings.device)
        matrices = [p for name, p in trainee.control.named_parameters() if "block" in name and p.ndim == 2]
        matrices.append(trainee.control.controlnet_x_embedder.weight)
        parameters += trainee.layout.parameters()
    with eagerly():
        losses = fit(
            settings,
            f"{trainee.family}-control",
            parameters,
            lambda: trainee.loss(pool, settings.batch // 2),
            rate=1.0 if is_flux else 0.7,
            matrices=matrices,
        )
    save_file(networks.weights_of({"control": trainee.control}), settings.out / f"{trainee.family}-edges.safetensors")
    if trainee.layout is not None:
        trainee.layout.hook.remove()
    trainee.control = trainee.layout = None
    return losses


class LowRank(nn.Module):
    """A layer and a LoRA beside it; the names of the two factors are those of PEFT."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base
        if isinstance(base, nn.Conv2d):
            stride: Any = base.stride
            padding: Any = base.padding
            self.lora_A: Any = nn.Conv2d(base.in_channels, rank, 3, stride, padding, bias=False)
            self.lora_B: Any = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        else:
            self.lora_A = nn.Linear(base.in_features, rank, bias=False)
            self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, values: Any, *_: Any, **__: Any) -> Any:
        """The sum of both."""
        return self.base(values) + self.lora_B(self.lora_A(values))


def lora_layers(denoiser: Any) -> list[str]:
    """Linear layers inside the blocks, and the convolutions of the U-Net's outer blocks, which have no attention."""
    inside = re.compile(r"(attentions|transformer_blocks|single_transformer_blocks)\.\d+\.(?!.*norm)")
    outer = re.compile(r"(down_blocks\.0|up_blocks\.2)\.resnets\.\d+\.conv\d")
    return [
        name
        for name, layer in denoiser.named_modules()
        if (isinstance(layer, nn.Linear) and inside.search(name))
        or (isinstance(layer, nn.Conv2d) and outer.search(name))
    ]


def train_lora(trainee: Trainee, style: str) -> list[float]:
    """A LoRA of rank 8 on pictures of one style; the file has the keys that `load_lora_weights` reads."""
    settings, base = trainee.settings, trainee.denoiser
    name = networks.DENOISER[trainee.family]
    pool = make_pool(settings, trainee.vae, max(settings.pool // 8, 8), seed=78, style=style)
    styled = copy.deepcopy(base)
    layers = {layer: LowRank(styled.get_submodule(layer), networks.LORA_RANK) for layer in lora_layers(styled)}
    for layer, wrapped in layers.items():
        parent, _, child = layer.rpartition(".")
        setattr(styled.get_submodule(parent), child, wrapped)
    trainee.nets[name] = styled.to(settings.device)
    parameters = [p for wrapped in layers.values() for p in (wrapped.lora_A.weight, wrapped.lora_B.weight)]
    for parameter in parameters:
        parameter.requires_grad_(True)
    with eagerly():
        losses = fit(
            settings, f"{trainee.family}-{style}", parameters, lambda: trainee.loss(pool, settings.batch // 2), rate=2.0
        )
    weights = {
        f"{name}.{layer}.lora_{side}.weight": getattr(wrapped, f"lora_{side}").weight.detach().cpu().half().contiguous()
        for layer, wrapped in layers.items()
        for side in "AB"
    }
    save_file(weights, settings.out / f"{trainee.family}-{style}.safetensors")
    trainee.nets[name] = base
    return losses


def train_family(settings: Settings, family: str) -> None:
    """All parts of a family that have seconds; a saved base is continued; the decoder comes before SDXL."""
    if family == "sdxl" and settings.seconds.get("vae-decoder"):
        train_decoder(settings)
    trainee = Trainee(settings, family)
    resumed = trainee.resume()
    wanted = {
        part.partition("-")[2] for part, limit in settings.seconds.items() if part.startswith(family) and limit > 0
    }
    settings.log(
        family=family,
        resumed=resumed,
        parts=sorted(wanted),
        parameters=networks.count_parameters(*trainee.nets.values()),
    )
    if wanted & {"text", "base", "guidance"}:
        pool = make_pool(settings, trainee.vae, settings.pool, seed=int(resumed))
        settings.log(family=family, pool=len(pool.latents), deviation=round(pool.latents.float().std().item(), 3))
        if "text" in wanted:
            train_text(trainee, pool)
        if "base" in wanted:
            train_base(trainee, pool)
        if "guidance" in wanted:
            train_guidance(trainee, pool)
        del pool
    trainee.train(False)
    if "control" in wanted:
        train_control(trainee)
    for style in STYLES:
        if style in wanted:
            train_lora(trainee, style)


def restore(settings: Settings, folder: Path = models.WEIGHTS) -> None:
    """Write the VAE and the networks of exported pipelines as if they had just been trained."""
    pipeline = models.load("sdxl", folder)
    images = next(_pictures(settings, 64)) / 2 + 0.5
    with torch.no_grad():
        mean = pipeline.vae.encode(images.cpu() * 2 - 1).latent_dist.mean.mean().item()
    scale = {"mean": str(mean), "deviation": str(1 / pipeline.vae.config.scaling_factor)}
    save_file(networks.weights_of({"vae": pipeline.vae}), settings.out / VAE_FILE, metadata=scale)
    for family in models.FAMILIES:
        if (folder / family).exists():
            made = models.load(family, folder)
            nets = {name: getattr(made, name) for name in networks.NETS[family]}
            save_file(networks.weights_of(nets), settings.out / f"{family}.safetensors")


# Export -----------------------------------------------------------------------------------------------------------


def export(settings: Settings, family: str, folder: Path = models.WEIGHTS) -> None:
    """Write the pipeline, its ControlNet and its LoRAs as diffusers folders and files in half precision."""
    trainee = Trainee(settings, family)
    if not trainee.resume():
        raise FileNotFoundError(trainee.path)
    trainee.pipeline().to(torch.float16).save_pretrained(folder / family)
    edges = settings.out / f"{family}-edges.safetensors"
    if edges.exists():
        control = networks.build_controlnet(family, trainee.denoiser)
        networks.set_weights({"control": control}, load_file(edges))
        control.half().save_pretrained(folder / f"{family}-edges")
    for style in STYLES:
        path, target = settings.out / f"{family}-{style}.safetensors", models.lora_path(family, style, folder)
        if path.exists():
            target.parent.mkdir(exist_ok=True)
            save_file(load_file(path), target)

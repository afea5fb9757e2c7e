"""SDXL for benchmarks: of full size, or tiny; random weights, made on the device itself. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from takeup.serving.diffusion.engine.tiny import _clip_tokenizer, _controlnet, _euler, _sdxl_parts

NETS = ("depth", "edges", "pose")
FULL_SHAPE: dict[str, Any] = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
}


@dataclass(frozen=True, slots=True)
class Models:
    """A pipeline, one with ControlNets around the same networks, and the ControlNets by name."""

    plain: Any
    steered: Any
    nets: dict[str, Any]
    size_px: int

    @property
    def device(self) -> torch.device:
        found: torch.device = self.plain.unet.device
        return found


def build_models(device: str, is_tiny: bool) -> Models:
    """Networks with random weights; on a device in bfloat16."""
    diffusers = import_module("diffusers")
    torch.manual_seed(0)
    with made_on(device, torch.float32 if is_tiny else torch.bfloat16):
        parts = _sdxl_parts() if is_tiny else full_parts(diffusers)
        nets = {name: _controlnet() if is_tiny else _full_net(diffusers) for name in NETS}
    parts["scheduler"] = _euler()  # its tables stay on the host
    steered = diffusers.StableDiffusionXLControlNetPipeline(**parts, controlnet=list(nets.values()))
    plain = diffusers.StableDiffusionXLPipeline(**parts)
    for pipeline in (plain, steered):
        pipeline.set_progress_bar_config(disable=True)
    return Models(plain, steered, nets, 32 if is_tiny else 1024)


def write_lora(path: Path, network: Any, rank: int, seed: int) -> int:
    """A LoRA for all linear layers inside attention blocks; the size of the file in bytes."""
    random = torch.Generator(network.device).manual_seed(seed)
    tensors = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and ".transformer_blocks." in name:
            for part, shape in (("A", (rank, module.in_features)), ("B", (module.out_features, rank))):
                drawn = torch.randn(shape, generator=random, device=network.device) * 0.02
                tensors[f"unet.{name}.lora_{part}.weight"] = drawn.to(network.dtype).cpu()
    save_file(tensors, path)
    return path.stat().st_size


@contextmanager
def made_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Inside, networks are made there, in this precision."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(usual)


def full_parts(diffusers: Any) -> dict[str, Any]:
    """Of SDXL, but for its scheduler."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=128, up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), **FULL_SHAPE
    )
    tokenizer = _clip_tokenizer()
    return {
        "unet": unet.eval().requires_grad_(False),
        "vae": full_vae(sample_size=1024, scaling_factor=0.13025),
        "text_encoder": full_clip(tokenizer, "CLIPTextModel", 768, 12, 12, "quick_gelu"),
        "text_encoder_2": full_clip(tokenizer, "CLIPTextModelWithProjection", 1280, 32, 20, "gelu"),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer,
        "add_watermarker": False,
    }


def full_vae(**others: Any) -> Any:
    """A decoder of the size that SDXL and Flux have."""
    vae = import_module("diffusers").AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        **others,
    )
    return vae.eval().requires_grad_(False)


def full_clip(tokenizer: Any, kind: str, width: int, num_layers: int, num_heads: int, activation: str) -> Any:
    """A text encoder of CLIP."""
    transformers = import_module("transformers")
    config = transformers.CLIPTextConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=num_heads,
        num_hidden_layers=num_layers,
        projection_dim=width,
        hidden_act=activation,
        bos_token_id=len(tokenizer) - 2,
        eos_token_id=len(tokenizer) - 1,
        pad_token_id=len(tokenizer) - 1,
    )
    return getattr(transformers, kind)(config).eval().requires_grad_(False)


def _full_net(diffusers: Any) -> Any:
    """A ControlNet whose last convolutions are not zero, so that it is felt."""
    net = diffusers.ControlNetModel(**FULL_SHAPE).eval().requires_grad_(False)
    for block in (*net.controlnet_down_blocks, net.controlnet_mid_block, net.controlnet_cond_embedding.conv_out):
        torch.nn.init.normal_(block.weight, std=0.01)
    return net

"""Tiny pipelines of every family with random weights, built locally: nothing is downloaded.

They have the components and the structure of the real ones, at a hundred-thousandth of the size: what is exact on them
is exact on the real ones. The same name and seed give the same weights.
"""

import tomllib
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from string import ascii_lowercase, digits, punctuation
from typing import Any

import torch

from takeup.errors import UnknownName

START, END = "<|startoftext|>", "<|endoftext|>"
MAX_TOKENS = 77
LETTERS = ascii_lowercase + digits + punctuation
CONFIGS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def tiny(name: str, seed: int = 0) -> Any:
    """The pipeline of this name, such as `takeup/tiny-sdxl`; cached, so changes to it affect all callers."""
    return _kept(name, seed)


def build(name: str, seed: int = 0) -> Any:
    """The same pipeline as `tiny` returns, but a new one for every caller."""
    if name not in TINY:
        raise UnknownName("tiny pipeline", name, TINY)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        pipeline = TINY[name]()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@lru_cache(maxsize=16)
def _kept(name: str, seed: int) -> Any:
    return build(name, seed)


# Text -------------------------------------------------------------------------------------------------------------


def _clip_tokenizer() -> Any:
    pieces = [*LETTERS, *(letter + "</w>" for letter in LETTERS), START, END]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return _transformers().CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=MAX_TOKENS)


def _clip(tokenizer: Any, kind: str = "CLIPTextModel") -> Any:
    end, act = len(tokenizer) - 1, "gelu" if kind.endswith("Projection") else "quick_gelu"
    tokens = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end, "vocab_size": len(tokenizer)}
    config = _transformers().CLIPTextConfig(**CONFIGS["CLIPTextConfig"], **tokens, hidden_act=act)
    return getattr(_transformers(), kind)(config).eval()


def _two_clips(first: str = "CLIPTextModel") -> dict[str, Any]:
    tokenizer = _clip_tokenizer()
    return {
        "text_encoder": _clip(tokenizer, first),
        "text_encoder_2": _clip(tokenizer, "CLIPTextModelWithProjection"),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer,
    }


def _t5_tokenizer() -> Any:
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary = special + [(letter, -3.0) for letter in LETTERS]
    return _transformers().T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=MAX_TOKENS)


def _t5(tokenizer: Any, width: int = 32) -> Any:
    others = {"d_model": width, "vocab_size": len(tokenizer), "decoder_start_token_id": 0}
    return _transformers().T5EncoderModel(_transformers().T5Config(**CONFIGS["T5Config"] | others)).eval()


# Images -----------------------------------------------------------------------------------------------------------


def _network(kind: str, **others: Any) -> Any:
    """A network of diffusers with the configuration of its class, and others."""
    return getattr(_diffusers(), kind)(**CONFIGS.get(kind, {}) | others).eval()


def _vae(**others: Any) -> Any:
    return _network("AutoencoderKL", **others)


def _unet(shape: dict[str, Any]) -> Any:
    return _network("UNet2DConditionModel", **shape)


def _sdxl_shape() -> dict[str, Any]:
    return CONFIGS["unet"] | CONFIGS["sdxl_unet"]


def _controlnet() -> Any:
    """A ControlNet whose zero convolutions are random, because zeros would hide every mistake."""
    net = _network("ControlNetModel", conditioning_embedding_out_channels=(16, 32), **_sdxl_shape())
    for block in (*net.controlnet_down_blocks, net.controlnet_mid_block, net.controlnet_cond_embedding.conv_out):
        torch.nn.init.normal_(block.weight, std=0.1)
        torch.nn.init.normal_(block.bias, std=0.1)
    return net


# Pipelines --------------------------------------------------------------------------------------------------------


def _sd15() -> Any:
    tokenizer = _clip_tokenizer()
    return _diffusers().StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=_clip(tokenizer),
        tokenizer=tokenizer,
        unet=_unet(CONFIGS["unet"]),
        scheduler=_diffusers().DDIMScheduler(**CONFIGS["training"], clip_sample=False, set_alpha_to_one=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _sdxl_parts() -> dict[str, Any]:
    networks = {**_two_clips(), "vae": _vae(), "unet": _unet(_sdxl_shape())}
    return {**networks, "scheduler": _euler(), "add_watermarker": False}


def _euler() -> Any:
    """Includes settings it does not use, as in the published configuration, since other schedulers are made from it."""
    others = {"timestep_spacing": "leading", "clip_sample": False, "set_alpha_to_one": False}
    return _diffusers().EulerDiscreteScheduler.from_config(CONFIGS["training"] | others)


def _sdxl() -> Any:
    return _diffusers().StableDiffusionXLPipeline(**_sdxl_parts())


def _sdxl_controlnet() -> Any:
    parts = _sdxl_parts()
    return _diffusers().StableDiffusionXLControlNetPipeline(**parts, controlnet=[_controlnet(), _controlnet()])


def _sd3() -> Any:
    t5_tokenizer = _t5_tokenizer()
    return _diffusers().StableDiffusion3Pipeline(
        **_two_clips("CLIPTextModelWithProjection"),
        transformer=_network("SD3Transformer2DModel"),
        text_encoder_3=_t5(t5_tokenizer, width=64),
        tokenizer_3=t5_tokenizer,
        vae=_vae(**CONFIGS["flow_vae"]),
        scheduler=_diffusers().FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def _flux() -> Any:
    tokenizer, t5_tokenizer = _clip_tokenizer(), _t5_tokenizer()
    return _diffusers().FluxPipeline(
        transformer=_network("FluxTransformer2DModel"),
        text_encoder=_clip(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=_t5(t5_tokenizer),
        tokenizer_2=t5_tokenizer,
        vae=_vae(**CONFIGS["flow_vae"]),
        scheduler=_diffusers().FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )


def _diffusers() -> Any:
    return import_module("diffusers")


def _transformers() -> Any:
    return import_module("transformers")


TINY: dict[str, Callable[[], Any]] = {
    "takeup/tiny-sd15": _sd15,
    "takeup/tiny-sdxl": _sdxl,
    "takeup/tiny-sdxl-controlnet": _sdxl_controlnet,
    "takeup/tiny-sd3": _sd3,
    "takeup/tiny-flux": _flux,
}

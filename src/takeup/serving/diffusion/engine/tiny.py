"""Tiny pipelines of every family with random weights, built locally: nothing is downloaded.

They have the components and the structure of the real ones, at a hundred-thousandth of the size: what is exact on them
is exact on the real ones. The same name and seed give the same weights.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from string import ascii_lowercase, digits, punctuation
from typing import Any

import torch

from takeup.errors import UnknownName

START, END = "<|startoftext|>", "<|endoftext|>"
MAX_TOKENS = 77
CHANNELS = (32, 64)


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


def _letters() -> str:
    return ascii_lowercase + digits + punctuation


def _clip_tokenizer() -> Any:
    pieces = [*_letters(), *(letter + "</w>" for letter in _letters()), START, END]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return _transformers().CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=MAX_TOKENS)


def _clip(tokenizer: Any, kind: str = "CLIPTextModel") -> Any:
    transformers = _transformers()
    config = transformers.CLIPTextConfig(
        bos_token_id=len(tokenizer) - 2,
        eos_token_id=len(tokenizer) - 1,
        pad_token_id=len(tokenizer) - 1,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=3,
        projection_dim=32,
        vocab_size=len(tokenizer),
        hidden_act="gelu" if kind.endswith("Projection") else "quick_gelu",
    )
    return getattr(transformers, kind)(config).eval()


def _two_clips() -> dict[str, Any]:
    tokenizer = _clip_tokenizer()
    return {
        "text_encoder": _clip(tokenizer),
        "text_encoder_2": _clip(tokenizer, "CLIPTextModelWithProjection"),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer,
    }


def _t5_tokenizer() -> Any:
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary = special + [(letter, -3.0) for letter in _letters()]
    return _transformers().T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=MAX_TOKENS)


def _t5(tokenizer: Any, width: int = 32) -> Any:
    transformers = _transformers()
    config = transformers.T5Config(
        d_ff=37, d_kv=8, d_model=width, num_heads=4, num_layers=2, vocab_size=len(tokenizer), decoder_start_token_id=0
    )
    return transformers.T5EncoderModel(config).eval()


# Images -----------------------------------------------------------------------------------------------------------


def _vae(latent_channels: int = 4, **others: Any) -> Any:
    return (
        _diffusers()
        .AutoencoderKL(
            block_out_channels=list(CHANNELS),
            down_block_types=["DownEncoderBlock2D"] * 2,
            up_block_types=["UpDecoderBlock2D"] * 2,
            latent_channels=latent_channels,
            norm_num_groups=8,
            **others,
        )
        .eval()
    )


def _unet_shape(cross_attention_dim: int, **others: Any) -> dict[str, Any]:
    return {
        "block_out_channels": CHANNELS,
        "layers_per_block": 2,
        "in_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "attention_head_dim": (2, 4),
        "cross_attention_dim": cross_attention_dim,
        "norm_num_groups": 8,
        **others,
    }


def _unet(shape: dict[str, Any]) -> Any:
    up = ("CrossAttnUpBlock2D", "UpBlock2D")
    return _diffusers().UNet2DConditionModel(sample_size=16, out_channels=4, up_block_types=up, **shape).eval()


def _sdxl_shape() -> dict[str, Any]:
    return _unet_shape(
        cross_attention_dim=64,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=80,
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
    )


def _controlnet() -> Any:
    """A ControlNet whose zero convolutions are random, because zeros would hide every mistake."""
    net = _diffusers().ControlNetModel(conditioning_embedding_out_channels=(16, 32), **_sdxl_shape()).eval()
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
        unet=_unet(_unet_shape(cross_attention_dim=32)),
        scheduler=_diffusers().DDIMScheduler(**_trained_with(), clip_sample=False, set_alpha_to_one=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _sdxl_parts() -> dict[str, Any]:
    return {
        **_two_clips(),
        "vae": _vae(),
        "unet": _unet(_sdxl_shape()),
        "scheduler": _euler(),
        "add_watermarker": False,
    }


def _euler() -> Any:
    """Includes settings it does not use, as in the published configuration, since other schedulers are made from it."""
    others = {"timestep_spacing": "leading", "clip_sample": False, "set_alpha_to_one": False}
    return _diffusers().EulerDiscreteScheduler.from_config({**_trained_with(), **others})


def _sdxl() -> Any:
    return _diffusers().StableDiffusionXLPipeline(**_sdxl_parts())


def _sdxl_controlnet() -> Any:
    parts = _sdxl_parts()
    return _diffusers().StableDiffusionXLControlNetPipeline(**parts, controlnet=[_controlnet(), _controlnet()])


def _sd3() -> Any:
    diffusers, t5_tokenizer = _diffusers(), _t5_tokenizer()
    clips = _two_clips()
    clips["text_encoder"] = _clip(clips["tokenizer"], "CLIPTextModelWithProjection")
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        out_channels=4,
    ).eval()
    return diffusers.StableDiffusion3Pipeline(
        **clips,
        text_encoder_3=_t5(t5_tokenizer, width=64),
        tokenizer_3=t5_tokenizer,
        transformer=transformer,
        vae=_vae(shift_factor=0.06, scaling_factor=1.5),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def _flux() -> Any:
    diffusers, tokenizer, t5_tokenizer = _diffusers(), _clip_tokenizer(), _t5_tokenizer()
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
        guidance_embeds=True,
    ).eval()
    return diffusers.FluxPipeline(
        text_encoder=_clip(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=_t5(t5_tokenizer),
        tokenizer_2=t5_tokenizer,
        transformer=transformer,
        vae=_vae(shift_factor=0.06, scaling_factor=1.5),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )


def _trained_with() -> dict[str, Any]:
    return {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


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

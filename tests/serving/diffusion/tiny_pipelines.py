"""Tiny pipelines of further families with random weights, built from the parts of diffusers and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from string import ascii_letters, digits, punctuation
from typing import Any

import torch

from takeup.serving.diffusion.engine import tiny

TURNS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
QWEN = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def diffusers() -> Any:
    return import_module("diffusers")


def transformers() -> Any:
    return import_module("transformers")


def letters() -> Iterator[str]:
    """The letters of byte-level vocabularies; a space is Ġ and a line break Ċ there."""
    yield from sorted({*ascii_letters, *digits, *punctuation, "Ġ", "Ċ"})


def qwen_tokenizer() -> Any:
    vocabulary = {token: number for number, token in enumerate([*letters(), *SPECIAL])}
    made = transformers().Qwen2TokenizerFast(vocab=vocabulary, merges=[], pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:])})
    made.chat_template = TURNS
    return made


def qwen3(kind: str, tokenizer: Any, **others: Any) -> Any:
    config = transformers().Qwen3Config(vocab_size=len(tokenizer), **{**QWEN, **others})
    return getattr(transformers(), kind)(config).eval()


def qwen_vl(tokenizer: Any) -> Any:
    number = tokenizer.convert_tokens_to_ids
    config = transformers().Qwen2_5_VLConfig(
        text_config={
            **{name: value for name, value in QWEN.items() if name != "head_dim"},
            "vocab_size": len(tokenizer),
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
        },
        image_token_id=number("<|image_pad|>"),
        video_token_id=number("<|video_pad|>"),
        vision_start_token_id=number("<|vision_start|>"),
        vision_end_token_id=number("<|vision_end|>"),
    )
    return transformers().Qwen2_5_VLForConditionalGeneration(config).eval()


def flow(**options: Any) -> Any:
    return diffusers().FlowMatchEulerDiscreteScheduler(**options)


def again(network: Any, config: dict[str, Any]) -> Any:
    """A network of the same class with another configuration."""
    return type(network)(**{name: value for name, value in config.items() if not name.startswith("_")}).eval()


def flux_parts(in_channels: int = 16, guidance_embeds: bool = True) -> dict[str, Any]:
    parts = dict(tiny.build("takeup/tiny-flux").components)
    parts = {name: part for name, part in parts.items() if name not in ("image_encoder", "feature_extractor")}
    config = {**parts["transformer"].config, "in_channels": in_channels, "out_channels": 16}
    parts["transformer"] = again(parts["transformer"], {**config, "guidance_embeds": guidance_embeds})
    return parts


def schnell() -> Any:
    return diffusers().FluxPipeline(**flux_parts(guidance_embeds=False))


def flux_fill() -> Any:
    return diffusers().FluxFillPipeline(**flux_parts(in_channels=16 + 16 + 16))


def flux_kontext() -> Any:
    return diffusers().FluxKontextPipeline(**flux_parts())


def flux_img2img() -> Any:
    return diffusers().FluxImg2ImgPipeline(**flux_parts())


def flux2() -> Any:
    tokenizer = qwen_tokenizer()
    channels = {"block_out_channels": (8, 16), "latent_channels": 4, "norm_num_groups": 4, "layers_per_block": 1}
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    transformer = diffusers().Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=96,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    return diffusers().Flux2KleinPipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=diffusers().AutoencoderKLFlux2(**channels, **blocks).eval(),
        text_encoder=qwen3("Qwen3ForCausalLM", tokenizer, num_hidden_layers=28),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
    )


def qwen_parts() -> dict[str, Any]:
    tokenizer = qwen_tokenizer()
    vae = diffusers().AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    transformer = diffusers().QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    return {
        "scheduler": flow(use_dynamic_shifting=True),
        "vae": vae.eval(),
        "text_encoder": qwen_vl(tokenizer),
        "tokenizer": tokenizer,
        "transformer": transformer.eval(),
    }


def qwen_image() -> Any:
    return diffusers().QwenImagePipeline(**qwen_parts())


class ImageTextProcessor:
    """As Qwen2VLProcessor, which needs torchvision: one token for each patch of an image that the model will see."""

    def __init__(self, tokenizer: Any) -> None:
        pixels = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
        sizes = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
        self.tokenizer, self.images = tokenizer, transformers().Qwen2VLImageProcessor(**sizes, **pixels)

    def __call__(self, text: list[str], images: Any, **options: Any) -> Any:
        seen = self.images(images=images, return_tensors="pt")
        counts = (seen["image_grid_thw"].prod(-1) // self.images.merge_size**2).tolist()
        spread = [one.replace(SPECIAL[5], SPECIAL[5] * count) for one, count in zip(text, counts, strict=True)]
        return transformers().BatchFeature({**self.tokenizer(spread, **options), **seen})


def qwen_edit() -> Any:
    parts = qwen_parts()
    return diffusers().QwenImageEditPipeline(**parts, processor=ImageTextProcessor(parts["tokenizer"]))


def z_image() -> Any:
    tokenizer = qwen_tokenizer()
    transformer = diffusers().ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=32,
        axes_dims=[4, 6, 6],
        axes_lens=[256, 64, 64],
    )
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if "pad_token" in name:
                parameter.normal_()  # is left as it was allocated
    return diffusers().ZImagePipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=tiny._vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder=qwen3("Qwen3Model", tokenizer),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
    )


def sdxl_parts(in_channels: int = 4) -> dict[str, Any]:
    parts = tiny._sdxl_parts()
    shape = {**tiny._sdxl_shape(), "in_channels": in_channels}
    return {**parts, "unet": tiny._unet(shape)}


def sdxl_inpaint() -> Any:
    """With the nine channels of inpainting checkpoints."""
    return diffusers().StableDiffusionXLInpaintPipeline(**sdxl_parts(in_channels=9))


def sdxl_img2img() -> Any:
    return diffusers().StableDiffusionXLImg2ImgPipeline(**sdxl_parts())


def sd35() -> Any:
    """With two attentions in some blocks and normed queries, as in 3.5 medium."""
    pipeline = tiny.build("takeup/tiny-sd3")
    config = {**pipeline.transformer.config, "dual_attention_layers": (0,), "qk_norm": "rms_norm"}
    pipeline.transformer = again(pipeline.transformer, config)
    return pipeline


def sd3_img2img() -> Any:
    parts = tiny.build("takeup/tiny-sd3").components
    return diffusers().StableDiffusion3Img2ImgPipeline(
        **{name: part for name, part in parts.items() if name not in ("image_encoder", "feature_extractor")}
    )


def pixart() -> Any:
    """A family that has nothing to do with the others."""
    tokenizer = tiny._t5_tokenizer()
    transformer = diffusers().PixArtTransformer2DModel(
        sample_size=32,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=32,
        in_channels=4,
        out_channels=8,
        cross_attention_dim=16,
        attention_bias=True,
        activation_fn="gelu-approximate",
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        num_embeds_ada_norm=1000,
    )
    return diffusers().PixArtSigmaPipeline(
        tokenizer=tokenizer,
        text_encoder=tiny._t5(tokenizer),
        vae=tiny._vae(),
        transformer=transformer.eval(),
        scheduler=diffusers().DDIMScheduler(**tiny.CONFIGS["training"]),
    )


PIPELINES: dict[str, Callable[[], Any]] = {
    "Flux schnell": schnell,
    "Flux Fill": flux_fill,
    "Flux Kontext": flux_kontext,
    "Flux img2img": flux_img2img,
    "Flux.2 Klein": flux2,
    "SD 3.5": sd35,
    "SD 3 img2img": sd3_img2img,
    "Qwen-Image": qwen_image,
    "Qwen-Image-Edit": qwen_edit,
    "Z-Image": z_image,
    "SDXL inpaint": sdxl_inpaint,
    "SDXL img2img": sdxl_img2img,
    "PixArt Sigma": pixart,
}


def build(name: str, seed: int = 0) -> Any:
    """The pipeline of this name; networks whose attention depends on positions, which random weights hardly use."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        pipeline = PIPELINES[name]()
    pipeline.set_progress_bar_config(disable=True)
    network = getattr(pipeline, "transformer", None) or pipeline.unet
    _sharpen(network, ("norm_q", "norm_k", "norm_added_q", "norm_added_k"))
    return pipeline


def _sharpen(network: Any, names: Sequence[str]) -> None:
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if any(each in name for each in names):
                parameter.mul_(6)

"""Small text-to-image networks for scenes with random weights, as stock diffusers parts.

Tokenizers are built here: every word of the captions is one token, letters spell the rest. The sizes are those of
`SIZES_OF`.
"""

import copy
import re
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from string import ascii_lowercase, digits, punctuation
from typing import Any

from takeup.errors import UnknownName
from takeup.scenes.models import FAMILIES, MAX_TOKENS
from takeup.scenes.world import WORDS

NETS = {"sdxl": ("unet", "text_encoder", "text_encoder_2"), "flux": ("transformer", "text_encoder", "text_encoder_2")}
DENOISER = {"sdxl": "unet", "flux": "transformer"}
START, END = "<|startoftext|>", "<|endoftext|>"
SIZES_OF: Mapping[str, Mapping[str, Any]] = {
    "full": {"vae": (32, 64, 64), "unet": (64, 80, 112), "text": 80, "t5": 112, "heads": 5, "blocks": (2, 6)},
    "tiny": {"vae": (16, 16, 16), "unet": (16, 32, 32), "text": 32, "t5": 32, "heads": 1, "blocks": (1, 1)},
}
LORA_RANK = 8


# Text -------------------------------------------------------------------------------------------------------------


def clip_tokenizer() -> Any:
    """A CLIP tokenizer in which each word of the captions is one token."""
    letters = ascii_lowercase + digits + punctuation
    merges = _merges(WORDS)
    pieces = [*letters, *(letter + "</w>" for letter in letters), *(a + b for a, b in merges), START, END]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return _load("transformers").CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=MAX_TOKENS)


def t5_tokenizer() -> Any:
    """A T5 tokenizer in which each word of the captions is one token."""
    letters = ascii_lowercase + digits + punctuation
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(letter, -6.0) for letter in letters] + [("▁" + word, -1.0) for word in WORDS if word != ","]
    return _load("transformers").T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=MAX_TOKENS)


def _merges(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Byte-pair merges, most frequent pair first, that join each of the words to one piece."""
    cut = [[*word[:-1], word[-1] + "</w>"] for word in words]
    merges: list[tuple[str, str]] = []
    while any(len(pieces) > 1 for pieces in cut):
        pairs: dict[tuple[str, str], int] = {}
        for pieces in cut:
            for pair in pairwise(pieces):
                pairs[pair] = pairs.get(pair, 0) + 1
        merges.append(max(pairs, key=pairs.__getitem__))
        cut = [_joined(pieces, merges[-1]) for pieces in cut]
    return merges


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _clip(tokenizer: Any, kind: str, width: int, layers: int) -> Any:
    transformers = _load("transformers")
    config = transformers.CLIPTextConfig(
        bos_token_id=len(tokenizer) - 2,
        eos_token_id=len(tokenizer) - 1,
        pad_token_id=len(tokenizer) - 1,
        hidden_size=width,
        intermediate_size=4 * width,
        max_position_embeddings=MAX_TOKENS,
        num_attention_heads=width // 16,
        num_hidden_layers=layers,
        projection_dim=width,
        vocab_size=len(tokenizer),
        hidden_act="gelu",
    )
    return _wider_embeddings(getattr(transformers, kind)(config))


def _t5(tokenizer: Any, width: int) -> Any:
    transformers = _load("transformers")
    config = transformers.T5Config(
        d_ff=2 * width,
        d_kv=16,
        d_model=width,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        num_heads=width // 16,
        num_layers=3,
        vocab_size=len(tokenizer),
        decoder_start_token_id=0,
    )
    return transformers.T5EncoderModel(config)


def _wider_embeddings(net: Any) -> Any:
    """Embeddings start at a deviation of 0.4 instead of 0.02: a denoiser can tell words apart from its first step."""
    for name, parameter in net.named_parameters():
        if name.endswith("embedding.weight"):
            parameter.data.mul_(20)
    return net


# Networks ---------------------------------------------------------------------------------------------------------


def build_vae(size: str = "full") -> Any:
    """A KL autoencoder of factor 4 with four latent channels."""
    channels = SIZES_OF[size]["vae"]
    return _load("diffusers").AutoencoderKL(
        block_out_channels=list(channels),
        down_block_types=["DownEncoderBlock2D"] * len(channels),
        up_block_types=["UpDecoderBlock2D"] * len(channels),
        layers_per_block=1,
        latent_channels=4,
        mid_block_add_attention=False,
        norm_num_groups=16,
        sample_size=128,
        scaling_factor=1.0,
    )


def build(family: str, size: str = "full") -> dict[str, Any]:
    """The networks of a family with random weights, without the VAE."""
    if family not in FAMILIES:
        raise UnknownName("family of scenes", family, FAMILIES)
    sizes, tokenizer = SIZES_OF[size], clip_tokenizer()
    width = sizes["text"]
    if family == "sdxl":
        return {
            "unet": _unet(sizes["unet"], width),
            "text_encoder": _clip(tokenizer, "CLIPTextModel", width, 2),
            "text_encoder_2": _clip(tokenizer, "CLIPTextModelWithProjection", width, 3),
        }
    return {
        "transformer": _transformer(sizes),
        "text_encoder": _clip(tokenizer, "CLIPTextModel", width, 2),
        "text_encoder_2": _t5(t5_tokenizer(), sizes["t5"]),
    }


def _unet(channels: tuple[int, ...], width: int) -> Any:
    return _load("diffusers").UNet2DConditionModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        block_out_channels=list(channels),
        layers_per_block=1,
        down_block_types=["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        attention_head_dim=[max(channel // 16, 1) for channel in channels],  # the number of heads, as in SDXL
        cross_attention_dim=2 * width,
        addition_embed_type="text_time",
        addition_time_embed_dim=16,
        projection_class_embeddings_input_dim=6 * 16 + width,
        transformer_layers_per_block=[1, 1, 1],
        use_linear_projection=True,
        norm_num_groups=16,
    )


def _transformer(sizes: Mapping[str, Any]) -> Any:
    transformer = _load("diffusers").FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=sizes["blocks"][0],
        num_single_layers=sizes["blocks"][1],
        attention_head_dim=32,
        num_attention_heads=sizes["heads"],
        joint_attention_dim=sizes["t5"],
        pooled_projection_dim=sizes["text"],
        axes_dims_rope=[4, 14, 14],
        guidance_embeds=True,
    )
    for name, layer in transformer.named_modules():
        if re.search(r"blocks\.\d+\.norm(1|1_context)?\.linear$", name):
            layer.weight.data.zero_()  # every block starts as the identity (adaLN-Zero of DiT)
            layer.bias.data.zero_()
    return transformer


def build_controlnet(family: str, denoiser: Any) -> Any:
    """A ControlNet for edge maps that starts as a copy of the denoiser's first part."""
    diffusers = _load("diffusers")
    if family == "sdxl":
        return diffusers.ControlNetModel.from_unet(denoiser, conditioning_embedding_out_channels=(16, 32, 64))
    config = denoiser.config
    return diffusers.FluxControlNetModel.from_transformer(
        denoiser,
        num_layers=1,
        num_single_layers=min(config.num_single_layers, 2),
        attention_head_dim=config.attention_head_dim,
        num_attention_heads=config.num_attention_heads,
    )


def count_parameters(*nets: Any) -> int:
    """Parameters of networks."""
    return sum(parameter.numel() for net in nets for parameter in net.parameters())


# Weights ----------------------------------------------------------------------------------------------------------


def weights_of(nets: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of networks in half precision, named `network.parameter`."""
    torch = _load("torch")
    return {
        f"{name}.{_bare(key)}": value.detach().to("cpu", torch.float16).contiguous()
        for name, net in nets.items()
        for key, value in net.state_dict().items()
        if value.is_floating_point()
    }


def set_weights(nets: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Put saved weights into networks; integer buffers keep their values."""
    for name, net in nets.items():
        state = net.state_dict()
        for key, value in state.items():
            if value.is_floating_point():
                state[key] = weights[f"{name}.{_bare(key)}"].to(value.dtype)
        net.load_state_dict(state)


def _bare(key: str) -> str:
    """Versions of transformers differ in whether names of a text encoder start with `text_model.`."""
    return key.removeprefix("text_model.")


# Pipelines --------------------------------------------------------------------------------------------------------


def scheduler_of(family: str) -> Any:
    """Velocity prediction down to pure noise for the U-Net; rectified flow for the transformer."""
    diffusers = _load("diffusers")
    if family == "flux":
        return diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return diffusers.DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,
    )


def assemble(family: str, vae: Any, nets: Mapping[str, Any]) -> Any:
    """The stock text-to-image pipeline of these networks."""
    diffusers, tokenizer = _load("diffusers"), clip_tokenizer()
    parts = {**{name: net.eval() for name, net in nets.items()}, "vae": vae.eval(), "scheduler": scheduler_of(family)}
    if family == "sdxl":
        pipeline = diffusers.StableDiffusionXLPipeline(
            **parts, tokenizer=tokenizer, tokenizer_2=tokenizer, add_watermarker=False
        )
    else:
        pipeline = diffusers.FluxPipeline(**parts, tokenizer=tokenizer, tokenizer_2=t5_tokenizer())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def scaled_vae(vae: Any, family: str, mean: float, deviation: float) -> Any:
    """A copy whose configuration scales latents to deviation 1; the Flux form also shifts them to mean 0."""
    vae = copy.deepcopy(vae)
    vae.register_to_config(scaling_factor=1 / deviation, shift_factor=mean if family == "flux" else None)
    return vae


def _load(name: str) -> Any:
    return import_module(name)

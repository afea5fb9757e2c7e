"""The trained pipelines of this package: one of SDXL form, one of Flux form, with ControlNets and LoRAs.

Both share one VAE (factor 4, four latent channels). The SDXL form is a U-Net with two CLIP text encoders; the Flux
form a transformer of double and single blocks with a guidance embedding, a CLIP and a T5 text encoder. They are built
by `benchmarks/support/scene_networks.py` and trained by `scripts/train-scenes`.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from takeup.core.extras import need
from takeup.errors import BadInput, UnknownName

FAMILIES = ("sdxl", "flux")
GUIDANCE = {"sdxl": 3.0, "flux": 3.5}
MAX_TOKENS = 48
WEIGHTS = Path(__file__).parent / "weights"


def load(family: str, folder: Path = WEIGHTS) -> Any:
    """The stock diffusers pipeline of a family with the trained weights, in float32 on the CPU."""
    if family not in FAMILIES:
        raise UnknownName("family of scenes", family, FAMILIES)
    path = folder / family
    if not (path / "model_index.json").exists():
        raise BadInput(f"no weights of scenes in {path}\n\nhint: train them with 'scripts/train-scenes'")
    kind = "StableDiffusionXLPipeline" if family == "sdxl" else "FluxPipeline"
    pipeline = getattr(_load("diffusers"), kind).from_pretrained(path).to(_load("torch").float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_controlnet(family: str, folder: Path = WEIGHTS) -> Any:
    """The ControlNet of a family for edge maps."""
    kind = {"sdxl": "ControlNetModel", "flux": "FluxControlNetModel"}[family]
    path = folder / f"{family}-edges"
    return getattr(_load("diffusers"), kind).from_pretrained(path).float()


def lora_path(family: str, style: str, folder: Path = WEIGHTS) -> Path:
    """The file of a style's LoRA, for `pipeline.load_lora_weights`."""
    return folder / f"{family}-loras" / f"{style}.safetensors"


def _load(name: str) -> Any:
    need("a trained scene model", "diffusion")
    return import_module(name)

"""Captioned scenes that the project renders itself, a judge of pictures, and small models trained on them."""

from typing import Any


def load(family: str) -> Any:
    """The stock diffusers pipeline of a family, `sdxl` or `flux`, with the weights of this package."""
    from takeup.scenes import models

    return models.load(family)

"""Pipelines of scenes are stock, small, and tokenize as the training does."""

from pathlib import Path

import pytest

from benchmarks.support import scene_networks as networks
from benchmarks.support import scene_scores
from takeup.errors import BadInput, UnknownName
from takeup.scenes import load, models, world
from takeup.scenes.judge import judge

pytest.importorskip("diffusers")
torch = pytest.importorskip("torch")
train = pytest.importorskip("benchmarks.support.scene_training")
pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT_BYTES = 12_000_000
SHIPPED = [family for family in models.FAMILIES if (models.WEIGHTS / family / "model_index.json").exists()]


@pytest.fixture(scope="module")
def vae() -> object:
    return networks.scaled_vae(networks.build_vae("tiny"), "flux", 0.0, 1.0)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_full_family_has_at_most_12_mb_in_half_precision(family: str) -> None:
    assert 2 * networks.count_parameters(networks.build_vae(), *networks.build(family).values()) <= LIMIT_BYTES


@pytest.mark.parametrize("family", models.FAMILIES)
def test_the_parts_make_a_stock_pipeline_that_paints(family: str, vae: object) -> None:
    pipeline = networks.assemble(family, vae, networks.build(family, "tiny"))
    made = pipeline("a red circle", height=32, width=32, num_inference_steps=2, output_type="np").images

    assert type(pipeline).__name__ in {"StableDiffusionXLPipeline", "FluxPipeline"}
    assert made.shape == (1, 32, 32, 3)


def test_the_words_of_captions_are_single_tokens_of_both_tokenizers() -> None:
    clip, t5 = networks.clip_tokenizer(), networks.t5_tokenizer()

    assert {len(clip(word).input_ids) for word in world.WORDS} == {3}
    assert {len(t5(word).input_ids) for word in world.WORDS if word != ","} == {2}


def test_training_tokenizes_as_the_pipelines_do() -> None:
    told = [*world.captions(world.sample(0, 40)), ""]
    first, second = train.tokenize(told)
    options = {"padding": "max_length", "max_length": models.MAX_TOKENS, "truncation": True}

    assert networks.clip_tokenizer()(told, **options).input_ids == first.tolist()
    assert networks.t5_tokenizer()(told, **options).input_ids == second.tolist()


def test_weights_survive_saving_in_half_precision() -> None:
    nets, others = networks.build("flux", "tiny"), networks.build("flux", "tiny")
    networks.set_weights(others, networks.weights_of(nets))

    for name, net in nets.items():
        for one, other in zip(net.parameters(), others[name].parameters(), strict=True):
            assert torch.allclose(one.half().float(), other)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UnknownName, match="sd15"):
        load("sd15")


def test_a_folder_without_weights_is_refused_with_the_command_that_trains_them(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="train-scenes"):
        models.load("sdxl", tmp_path)


@pytest.mark.parametrize("family", SHIPPED)
def test_the_shipped_weights_have_at_most_12_mb(family: str) -> None:
    files = [path for path in (models.WEIGHTS / family).rglob("*") if path.is_file()]

    assert sum(path.stat().st_size for path in files) <= LIMIT_BYTES


@pytest.mark.parametrize("family", SHIPPED)
def test_the_shipped_weights_paint_what_captions_ask_for(family: str) -> None:
    told = ["a large red circle at the top left on a black background", "a large blue square in the center on beige"]
    images = scene_scores.paint(load(family), told, steps=8, guidance_scale=models.GUIDANCE[family])

    assert judge(images, told).right.sum() == 2

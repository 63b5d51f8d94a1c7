"""What reaches a network is what its library would feed it, for images of many shapes and kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from flipguard.data.image_folders import FolderSplit
from flipguard.errors import InputError
from flipguard.fusion import fuse
from flipguard.fusion.operation import NotFusable
from flipguard.fusion.packed import trace
from flipguard.models import build_model, classify, head_of
from flipguard.models.preprocessing import Preprocessing, preprocess_with, preprocessing_of
from flipguard.models.published import published_preprocessing

ROUNDING = 2e-6  # of float32, for values of about 2

TIMM = [
    "resnet18",  # bicubic, 0.95
    "resnet50.tv_in1k",  # bilinear, 0.875
    "vit_base_patch16_clip_224.openai",  # 0.9
    "mobilenetv3_small_100",
    "beit_base_patch16_224",  # mean and deviation 0.5
    "vit_base_patch16_siglip_224",  # squashed
]
TORCHVISION = ["resnet18", "vit_b_16", "efficientnet_b3", "mobilenet_v3_small", "inception_v3"]
# Processors of Transformers, by the settings that a folder stores.
PROCESSORS: dict[str, dict[str, Any]] = {
    "vit": {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 24, "width": 24},
        "resample": 2,
    },
    "convnext": {
        "image_processor_type": "ConvNextImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_pct": 0.875,
        "resample": 3,
    },
    "bit": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 33},
        "crop_size": {"height": 24, "width": 28},
        "image_mean": [0.48, 0.45, 0.4],
        "image_std": [0.26, 0.26, 0.27],
        "resample": 3,
    },
    "clip": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 24},
        "crop_size": {"height": 24, "width": 24},
    },
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide, high, odd, small and large files in colour, grey, CMYK, with a palette, with alpha."""
    folder = tmp_path_factory.mktemp("pictures")
    drawn = np.random.default_rng(0)

    def picture(height: int, width: int) -> Image.Image:
        coarse = drawn.integers(0, 256, (7, 9, 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)

    picture(301, 422).save(folder / "wide.jpg")
    picture(517, 244).save(folder / "high.png")
    picture(61, 47).convert("L").save(folder / "grey.jpg")
    picture(333, 333).convert("CMYK").save(folder / "cmyk.jpg")
    picture(255, 256).convert("P").save(folder / "palette.png")
    picture(90, 431).convert("RGBA").save(folder / "alpha.png")
    return folder


def seen_by_the_network(preprocessing: Preprocessing, folder: Path) -> torch.Tensor:
    """The tensors in front of the first layer, when files are decoded and fed to a model."""
    model = preprocess_with(nn.Identity(), preprocessing)
    paths = sorted(path.name for path in folder.iterdir())
    split = FolderSplit(
        root=folder,
        paths=paths,
        targets=torch.zeros(len(paths), dtype=torch.int64),
        size=8,
        preprocessing=preprocessing,
    )
    pixels = split.inputs(torch.arange(len(paths)))
    return model(pixels.float() / 127.5 - 1)


def by_library(transform: Callable[[Image.Image], torch.Tensor], folder: Path) -> torch.Tensor:
    opened = (Image.open(path).convert("RGB") for path in sorted(folder.iterdir()))
    return torch.stack([transform(image) for image in opened])


def check_equal(
    spec: str, transform: Callable[[Image.Image], torch.Tensor], folder: Path
) -> Preprocessing:
    preprocessing = published_preprocessing(spec)
    assert preprocessing is not None
    found, expected = seen_by_the_network(preprocessing, folder), by_library(transform, folder)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= ROUNDING
    return preprocessing


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str, pictures: Path) -> None:
    import timm

    told = timm.get_pretrained_cfg(name).to_dict()
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config(pretrained_cfg=told), is_training=False
    )
    check_equal(f"timm:{name}", transform, pictures)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str, pictures: Path) -> None:
    import torchvision

    weights = torchvision.models.get_model_weights(name).DEFAULT
    transform = weights.transforms()
    if name == "inception_v3":
        # Its published weights scale the inputs once more inside the network.
        inside = torchvision.models.inception_v3(init_weights=False)
        inside.transform_input = True

        def whole(image: Image.Image) -> torch.Tensor:
            return inside._transform_input(transform(image)[None])[0]

        check_equal(f"torchvision:{name}", whole, pictures)
        return
    check_equal(f"torchvision:{name}", transform, pictures)


@pytest.mark.parametrize("name", PROCESSORS)
def test_transformers(name: str, pictures: Path, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[name]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")

    def transform(image: Image.Image) -> torch.Tensor:
        return processor(images=image, return_tensors="pt")["pixel_values"][0]

    check_equal(f"hf:{tmp_path}", transform, pictures)


def test_a_processor_that_does_something_else_is_refused(tmp_path: Path) -> None:
    told = {**PROCESSORS["vit"], "image_processor_type": "MobileViTImageProcessor"}
    told |= {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(
        InputError, match=r"but got MobileViT.*give it yourself by `preprocessing.input_size`"
    ):
        published_preprocessing(f"hf:{tmp_path}")


def test_a_folder_without_a_processor_tells_nothing(vit: Path) -> None:
    assert published_preprocessing(f"hf:{vit}") is None
    assert published_preprocessing("resnet20") is None


def test_a_border_that_is_filled_is_refused() -> None:
    import timm

    names = timm.list_models(pretrained=True)
    bordered = next(n for n in names if timm.get_pretrained_cfg(n).crop_mode == "border")
    with pytest.raises(InputError, match="but got the crop mode border"):
        published_preprocessing(f"timm:{bordered}")


def test_a_model_keeps_its_names_its_head_and_its_state() -> None:
    plain = build_model("resnet20:width=4", classes=3, input_shape=(3, 8, 8), seed=0)
    model = build_model("resnet20:width=4", classes=3, input_shape=(3, 8, 8), seed=0)
    chosen = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    assert preprocess_with(model, chosen) is model
    assert preprocessing_of(model) == chosen
    assert list(model.state_dict()) == list(plain.state_dict())
    assert head_of(model) is model.head
    images = torch.rand(2, 3, 8, 8)
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in (chosen.mean, chosen.std))
    model.eval(), plain.eval()
    expected = plain((images - mean) / std)
    torch.testing.assert_close(model(images * 2 - 1), expected)
    wide = classify(model.double(), images.double() * 2 - 1)
    torch.testing.assert_close(wide.float(), expected)


def test_it_is_never_left_out_where_a_network_is_rewritten() -> None:
    """Rewriting traces `forward`, which does not contain what happens in front of it."""
    model = build_model("conv2d:width=4", classes=3, input_shape=(3, 8, 8), seed=0)
    trace(model)
    preprocess_with(model, Preprocessing(mean=(0.4,)))
    with pytest.raises(NotFusable, match="hooks on the network"):
        trace(model)
    members = [
        preprocess_with(
            build_model("conv2d:width=4", classes=3, input_shape=(3, 8, 8), seed=seed),
            Preprocessing(mean=(0.4,)),
        )
        for seed in (0, 1)
    ]
    fused, images = fuse(members).eval(), torch.rand(5, 3, 8, 8)
    for member, logits in zip(members, fused(images), strict=True):
        torch.testing.assert_close(logits, member.eval()(images))


def test_nothing_is_multiplied_by_default() -> None:
    images = torch.randn(2, 3, 8, 8)
    model = preprocess_with(nn.Identity(), Preprocessing())
    assert model(images) is images


@pytest.mark.parametrize("shape", [(3, 9, 12), (1, 9, 12), (9, 12)])
def test_grey_images_and_other_sizes(shape: tuple[int, ...]) -> None:
    chosen = Preprocessing(input_size=(6, 5), mean=(0.0,) * 3, std=(1.0,) * 3)
    given = torch.full((2, *shape), 0.5)
    assert chosen.shape(shape) == (3, 6, 5)
    found = preprocess_with(nn.Identity(), chosen)(given)
    torch.testing.assert_close(found, torch.full((2, 3, 6, 5), 0.75))


def test_images_are_shrunk_with_antialiasing() -> None:
    stripes = torch.tensor([1.0, -1.0]).repeat(1, 1, 16, 8)
    for name in ("bilinear", "bicubic", "lanczos"):
        chosen = Preprocessing(input_size=(4, 4), interpolation=name)
        found = preprocess_with(nn.Identity(), chosen)(stripes)
        assert found[..., 1:-1].abs().max() < 0.1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mean": (0.5, 0.5), "std": (1.0,) * 3}, "one number per channel, but got 2 and 3"),
        ({"std": (0.0,)}, "numbers above 0"),
        ({"input_size": (0, 4)}, r"`preprocessing.input_size` to be 2 whole numbers"),
        ({"resize": (4,)}, r"`preprocessing.input_size` together with"),
        ({"interpolation": "cubic"}, "one of nearest, bilinear, bicubic"),
    ],
)
def test_values_that_make_no_sense(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Preprocessing(**values)


def test_it_can_be_stored() -> None:
    chosen = Preprocessing(input_size=(6, 5), resize=(7,), mean=(0.1,) * 3, centre="even")
    assert Preprocessing.from_json(json.loads(json.dumps(chosen.as_json()))) == chosen

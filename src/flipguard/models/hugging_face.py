"""Models of Transformers from a local folder, and the encoding of texts as tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flipguard.errors import InputError, listed
from flipguard.models.libraries import Maker, library, refusing
from flipguard.models.shapes import Shape, full_image
from flipguard.specs import Number

PREFIX = "hf:"

LONGEST = 128
# Where a configuration has the rate of dropout: before the head if possible, else everywhere.
DROPOUTS = (
    *("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout"),
    *("hidden_dropout_prob", "dropout_rate"),
)


def path_of(spec: str) -> str:
    """Return the folder, file or cached name in ``hf:PATH`` or ``hf:PATH:dropout=RATE``.

    >>> path_of("hf:models/tiny"), path_of("hf:models/tiny:dropout=0.2")
    ('models/tiny', 'models/tiny')
    """
    path = spec.removeprefix(PREFIX) if isinstance(spec, str) and spec.startswith(PREFIX) else ""
    if not path:
        raise InputError(
            f"Expected `model` to be hf:PATH, but got {listed([spec])}; name the folder of a model "
            "of Transformers."
        )
    return path_and_options(path)[0]


def path_and_options(rest: str) -> tuple[str, str]:
    """Return the path and the text of the options in what follows ``hf:``.

    >>> path_and_options("models/tiny:dropout=0.2")
    ('models/tiny', 'dropout=0.2')
    """
    path, mark, rate = rest.rpartition(":dropout=")
    return (path, f"dropout={rate}") if mark else (rest, "")


def transformers_maker(
    path: str,
    *,
    classes: int,
    input_shape: Shape | None,
    pretrained: bool,
    dropout: Number | None = None,
) -> Maker:
    """Return a maker of the classifier that a folder configures; nothing is downloaded.

    Without `dropout`, the rates are those of the configuration.
    """
    spec = f"{PREFIX}{path}"
    transformers = library("transformers", what=f"The model '{spec}'")
    if pretrained and Path(path).is_file():
        raise InputError(
            f"Expected '{spec}' to be a folder with weights, but got a file; name the folder, or "
            "start without pretrained weights."
        )
    with refusing(spec, expected="a model of Transformers on this machine"):
        configuration = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    configuration.num_labels = classes
    if dropout is not None:
        setattr(configuration, _dropout_argument(spec, configuration), dropout)
    if reads_images(spec, configuration, input_shape):
        kind = transformers.AutoModelForImageClassification
        if input_shape is not None:
            _fit(configuration, spec, input_shape)
    else:
        kind = transformers.AutoModelForSequenceClassification
        if input_shape is not None:
            raise InputError(
                f"Expected `input_shape` to be None for '{spec}', which reads texts, but got "
                f"{input_shape}; choose a model for such inputs."
            )

    def make() -> nn.Module:
        with refusing(spec, input_shape):
            if pretrained:
                # A head for other classes is left out and initialised again, as expected here.
                with _quiet(transformers):
                    model = kind.from_pretrained(
                        path,
                        config=configuration,
                        local_files_only=True,
                        ignore_mismatched_sizes=True,
                    )
            else:
                model = kind.from_config(configuration)
        # Some folders set half precision, in which small training steps are lost.
        wide: nn.Module = model.float()
        return wide

    return make


def published_classifier(
    path: str, *, input_shape: Shape | None
) -> tuple[nn.Module, Any, list[str]]:
    """Return the classifier in a folder with its own head, its configuration, and missing tensors.

    Nothing is downloaded. Missing tensors are drawn at random.
    """
    spec = f"{PREFIX}{path}"
    transformers = library("transformers", what=f"The model '{spec}'")
    with refusing(spec, expected="a model of Transformers on this machine"):
        configuration = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    kind = transformers.AutoModelForSequenceClassification
    if reads_images(spec, configuration, input_shape):
        kind = transformers.AutoModelForImageClassification
        if input_shape is not None:
            _fit(configuration, spec, input_shape)
    with (
        refusing(spec, expected="a folder with the weights of a classifier"),
        _quiet(transformers),
    ):
        model, told = kind.from_pretrained(
            path, config=configuration, local_files_only=True, output_loading_info=True
        )
    return model.float(), configuration, sorted(told["missing_keys"])


def _dropout_argument(spec: str, configuration: Any) -> str:
    """Return the name of the entry of a configuration that sets the rate of dropout."""
    for name in DROPOUTS:
        if hasattr(configuration, name):
            return name
    raise InputError(
        f"Expected a model of Transformers whose configuration has a rate of dropout, but got "
        f"'{spec}', of the kind '{configuration.model_type}', which has none; choose another model."
    )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    was = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(was)
        if bars:
            logging.enable_progress_bar()


def reads_images(spec: str, configuration: Any, input_shape: Shape | None) -> bool:
    """Return whether a configured model reads images; raise if it classifies nothing."""
    known = library("transformers.models.auto.modeling_auto", what=f"The model '{spec}'")
    kind = configuration.model_type
    images = kind in known.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    texts = kind in known.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    if not images and not texts:
        raise InputError(
            f"Expected '{spec}' to be a model that classifies texts or images, but got the kind "
            f"'{kind}'; choose another."
        )
    # A few kinds of models read both; texts have no shape.
    return images and not (texts and input_shape is None)


def _fit(configuration: Any, spec: str, input_shape: Shape) -> None:
    grid = full_image(spec, input_shape)
    if hasattr(configuration, "num_channels"):
        configuration.num_channels = grid.channels
    if hasattr(configuration, "image_size"):
        square = grid.sizes[0] == grid.sizes[1]
        configuration.image_size = grid.sizes[0] if square else list(grid.sizes)


def tokenizer_for(spec: str) -> Any:
    """Return the tokenizer in the folder of an ``hf:`` model; nothing is downloaded."""
    path = path_of(spec)
    transformers = library("transformers", what=f"The tokenizer of '{spec}'")
    if Path(path).is_file():
        # The path is a configuration; its tokenizer is next to it.
        path = str(Path(path).parent)
    with refusing(spec, expected="a folder with a tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)


def encode_texts(
    texts: Sequence[str], *, tokenizer: Any, max_length: int = LONGEST
) -> dict[str, Tensor]:
    """Return texts as named tensors [texts, `max_length`]: cut if longer, padded if shorter.

    All batches have one shape, so that a sample's logits do not depend on the rest of its batch.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            "Expected `texts` to be a list of texts, but got "
            f"{_odd(texts)}; give one text for each sample."
        )
    longest = tokenizer.model_max_length
    if not isinstance(max_length, int) or not 1 <= max_length <= longest:
        raise InputError(
            f"Expected `max_length` to be a whole number of tokens from 1 to {longest}, but got "
            f"{max_length!r}; the model reads no more."
        )
    if tokenizer.pad_token is None:
        raise InputError(
            "Expected `tokenizer` to have a token for padding, but got none; set its `pad_token`, "
            "and the model's `config.pad_token_id`."
        )
    encoded = tokenizer(
        list(texts),
        padding="max_length",
        truncation=True,
        max_length=max_length,
        return_tensors="pt",
    )
    return dict(encoded)


def _odd(texts: Sequence[object]) -> str:
    if isinstance(texts, str):
        return "one text"
    return next(type(text).__name__ for text in texts if not isinstance(text, str))

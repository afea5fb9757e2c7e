"""Requests and responses, field by field. Names are those of OpenAI's images API, then our own."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import UploadFile
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    model_validator,
)

from takeup.serving.server.access import NAME
from takeup.serving.server.backends import ImageFormat
from takeup.serving.server.errors import ErrorDetail

MAX_PROMPT_CHARS = 4_000
MAX_IMAGES, MAX_STEPS, MAX_LORAS, MAX_CONTROLS = 10, 150, 8, 4
MAX_SEED = 2**53 - 1  # so that it survives programs whose numbers are all floating
MAX_IMAGE_CHARS = 28_000_000

Text = Annotated[str, StringConstraints(max_length=MAX_PROMPT_CHARS)]
Name = Annotated[str, StringConstraints(pattern=rf"^{NAME}$")]
Size = Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]{0,4}x[1-9][0-9]{0,4}|auto)$")]
TEMPLATE = r"^tpl_[0-9a-f]{24}$"
Template = Annotated[str, StringConstraints(pattern=TEMPLATE)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


ALIASES = {
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "true_cfg_scale": "true_guidance",
    "image[]": "image",
}
"""Names of diffusers and of other servers for fields of ours."""
DECLARED_WITHOUT_EFFECT = frozenset({"background", "moderation", "quality", "style", "user"})
UNDECLARED_WITHOUT_EFFECT = frozenset(
    {
        "complexity",
        "frame_count",
        "frame_duration_ms",
        "input_fidelity",
        "markup",
        "partial_images",
        "safety_identifier",
        "svg",
    }
)
"""Fields of OpenAI's API that are accepted, have no effect, and are listed in `ignored` of the answer."""


class LoraSelection(BaseModel):
    """A LoRA of this request, and its scale."""

    model_config = ConfigDict(strict=True, extra="forbid")
    name: Name
    scale: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] = 1.0


class ControlNetSelection(BaseModel):
    """A ControlNet of this request: its image as base64, its scale, and the share of the steps in which it acts."""

    model_config = ConfigDict(strict=True, extra="forbid")
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    image: Annotated[str, StringConstraints(min_length=1, max_length=MAX_IMAGE_CHARS)]
    scale: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 1.0
    start: Share = 0.0
    end: Share = 1.0

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.start >= self.end:
            raise ValueError("start must be below end")
        return self


LoraSelections = Annotated[list[LoraSelection], Field(max_length=MAX_LORAS)]
ControlNetSelections = Annotated[list[ControlNetSelection], Field(max_length=MAX_CONTROLS)]


class ImageRequestBody(BaseModel):
    """Fields that generations and edits have in common."""

    model_config = ConfigDict(extra="forbid")
    prompt: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PROMPT_CHARS)]
    model: Annotated[str, StringConstraints(max_length=200)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_IMAGES)] = 1
    size: Size | None = Field(None, description="Width and height in pixels, such as 1024x1024.")
    response_format: Literal["b64_json", "url"] = Field("b64_json", description="A `url` is valid for an hour.")
    output_format: ImageFormat = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    stream: bool = Field(False, description="Answer with server-sent events: progress, then the images.")
    user: Annotated[str, StringConstraints(max_length=200)] | None = Field(None, description="Without effect.")
    quality: Literal["auto", "standard", "hd", "low", "medium", "high"] | None = Field(
        None, description="Without effect; choose the number of steps."
    )
    background: Literal["auto", "opaque", "transparent"] | None = Field(None, description="Without effect.")
    negative_prompt: Text | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        None, description="Seed of the first image; the next images have the following seeds. Random if absent."
    )
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = Field(None, description="Default: that of the model.")
    guidance: Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)] | None = Field(
        None, description="Guidance scale; default: that of the model."
    )
    true_guidance: Annotated[float, Field(ge=1, le=50, allow_inf_nan=False)] | None = Field(
        None, description="Flux: classifier-free guidance with the negative prompt, which has no effect at 1."
    )
    prompt_2: Text | None = Field(None, description="For the second text encoder; default: the prompt.")
    clip_skip: Annotated[int, Field(ge=1, le=12)] | None = Field(
        None, description="Layers of the text encoder that are left out."
    )
    guidance_rescale: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    scheduler: Annotated[str, StringConstraints(max_length=40)] | None = Field(
        None, description="Such as euler, ddim, dpm++, unipc; default: that of the model."
    )
    exact: bool | None = Field(None, description="False: begin before the LoRAs are loaded, within a usual bound.")
    late_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = Field(
        None, description="Maximum number of steps that run before the LoRAs are loaded."
    )
    deadline_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    webhook: Annotated[str, StringConstraints(max_length=2000)] | None = Field(
        None, description="A URL that is told when the images are ready; the answer is a job."
    )
    loras: LoraSelections = []
    controls: ControlNetSelections = []

    _ignored: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _tolerant(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Accept aliases, and fields of OpenAI's API that have no effect here."""
        if not isinstance(data, Mapping):
            return handler(data)
        known: dict[str, Any] = {}
        for name, value in data.items():
            if name not in UNDECLARED_WITHOUT_EFFECT:
                own = ALIASES.get(str(name), str(name))
                if own in known:
                    raise ValueError(f"{own} is given twice; leave out {name}")
                known[own] = value
        if known.get("image") is not None and not isinstance(known["image"], list):
            known["image"] = [known["image"]]
        made = handler(known)
        without = DECLARED_WITHOUT_EFFECT | UNDECLARED_WITHOUT_EFFECT
        made._ignored = tuple(sorted(name for name, value in data.items() if name in without and value is not None))
        return made

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Further arguments of the pipeline."""
        given = {"prompt_2": self.prompt_2, "clip_skip": self.clip_skip}
        return tuple((name, value) for name, value in given.items() if value is not None)

    def ignore(self, names: Collection[str]) -> None:
        """Note those of these fields that were sent: they have no effect on the served model."""
        self._ignored = tuple(sorted({*self._ignored, *(name for name in names if getattr(self, name, None))}))

    @property
    def ignored(self) -> tuple[str, ...]:
        """The fields that were sent and have no effect."""
        return self._ignored

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.exact and self.late_steps:
            raise ValueError("exact images wait for their LoRAs; leave out late_steps, or exact")
        return self

    @property
    def size_px(self) -> tuple[int, int] | None:
        """Width and height, if they were given."""
        if self.size is None or self.size == "auto":
            return None
        width, height = self.size.split("x")
        return int(width), int(height)


class Generation(ImageRequestBody):
    """An image from a text."""

    model_config = ConfigDict(strict=True, extra="forbid")
    style: Literal["vivid", "natural"] | None = Field(None, description="Without effect.")
    moderation: Literal["auto", "low"] | None = Field(None, description="Without effect.")


class EditForm(ImageRequestBody):
    """An image from an image, as the fields of a form."""

    image: Annotated[list[UploadFile], Field(max_length=16)] = Field([], description="Further ones are references.")
    template: Template | None = Field(None, description="An image of an earlier edit, in place of `image`.")
    mask: UploadFile | None = Field(None, description="Transparent pixels are changed; in an opaque mask, bright ones.")
    strength: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Share of the steps that are run: 1 with a mask, else 0.8."
    )
    max_error: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Steps compute the whole image where its template is staler than this."
    )
    loras: Json[LoraSelections] = Field(default_factory=list, description="A list as JSON text.")
    controls: Json[ControlNetSelections] = Field(default_factory=list, description="A list as JSON text.")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.template is None and not self.image:
            raise ValueError("there is neither an image nor the template of one; send either")
        if self.template is not None and any(image.size for image in self.image):
            raise ValueError("there are both an image and the template of one; send either, or an empty image")
        return self


class VariationForm(BaseModel):
    """Variations of an image: an edit of all of it without a text. Fields are those of OpenAI's API."""

    model_config = ConfigDict(extra="forbid")
    image: UploadFile
    model: Annotated[str, StringConstraints(max_length=200)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_IMAGES)] = 1
    size: Size | None = Field(None, description="Without effect: variations have the size of the image.")
    response_format: Literal["b64_json", "url"] = "b64_json"
    user: Annotated[str, StringConstraints(max_length=200)] | None = Field(None, description="Without effect.")

    def as_edit(self) -> EditForm:
        """The equivalent edit."""
        fields = {name: getattr(self, name) for name in ("model", "n", "response_format", "user")}
        given = {name: value for name, value in fields.items() if value is not None}
        return EditForm(prompt=" ", image=[self.image], **given)


# Answers --------------------------------------------------------------------------------------------------------------


Item = TypeVar("Item")


class EditFacts(BaseModel):
    """Facts on an edit: the template it used or made, the share of the image it computed, and its error.

    `error` is an upper estimate of the root mean square difference of pixels inside the mask, from 0 to 1, from the
    edit that computes everything.
    """

    template: str | None = None
    from_template: bool
    mask_share: float
    computed_share: float
    error: float | None = None
    packing_error: float
    whole_steps: int


class ImageObject(BaseModel):
    """One image as base64 or as a URL, its seed, and facts on an edit."""

    b64_json: str | None = None
    url: str | None = None
    seed: int
    edit: EditFacts | None = None


class RequestTiming(BaseModel):
    """Seconds until the last image started, and until all were finished."""

    queued_s: float
    total_s: float


class ImagesResponse(BaseModel):
    """The images of a request."""

    id: str
    created: int
    output_format: ImageFormat
    size: str | None = None
    data: list[ImageObject]
    timing: RequestTiming
    ignored: list[str] | None = Field(None, description="Fields of the request that have no effect.")


class Listing(BaseModel, Generic[Item]):
    """All objects of a kind that the tenant may see."""

    object: Literal["list"] = "list"
    data: list[Item]


class JobObject(BaseModel):
    """An asynchronous job; its images are under URLs that are valid for an hour."""

    id: str
    object: Literal["job"] = "job"
    status: Literal["running", "done", "failed", "cancelled"]
    created: int
    result: ImagesResponse | None = None
    error: ErrorDetail | None = None


class ModelObject(BaseModel):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "takeup"
    family: str
    controls: list[str]


class AdapterObject(BaseModel):
    """A LoRA that can be named in requests."""

    id: str
    object: Literal["adapter"] = "adapter"
    created: int
    bytes: int
    shared: bool
    pinned: bool = False
    loaded: bool = Field(False, description="Whether it is in memory.")


class TemplateObject(BaseModel):
    """An image that was edited and can be named in the next edit."""

    id: str
    object: Literal["template"] = "template"
    used: int
    bytes: int


class DeletionResult(BaseModel):
    """A deleted adapter or template."""

    id: str
    object: Literal["adapter", "template"] = "adapter"
    deleted: bool = True

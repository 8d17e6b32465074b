"""What goes over the wire, with examples for the OpenAPI description."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recollect.recognition.results import Category, Duplicate, Prediction
from recollect.serve.problems import MEDIA_TYPE

_CATEGORY = {"id": 1000, "name": "okapi", "origin": "novel", "examples": 2, "hidden": False}
_PICTURE = {"type": "string", "format": "binary"}
_RAW = {"image/jpeg": {"schema": _PICTURE}, "image/png": {"schema": _PICTURE}}
_PICTURES = {"type": "array", "items": _PICTURE, "minItems": 1}


def _form(**fields: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {**fields, "picture": _PICTURES}, "required": ["picture"]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}, **_RAW}}}


BODY = _form()
NAMED_BODY = _form(name={"type": "string", "example": "okapi"})
_TEXTS: dict[int | str, str] = {422: "Input that cannot be used.", "default": "Any other problem."}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "error": {"type": "string"},
                    },
                    "required": ["type", "title", "status", "detail"],
                },
                "example": {
                    "type": "about:blank",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "no category is called 'okapy'",
                },
            }
        },
    }
    for status, text in _TEXTS.items()
}
ONE_CATEGORY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"example": _CATEGORY}}}
}


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Picture(_Wire):
    """The answers for one picture."""

    picture: str = Field(description="The name of the file, if the client sent one.")
    unknown: bool
    answers: list[Prediction]


class Answers(_Wire):
    """The answers for each picture, in the order of sending."""

    predictions: list[Picture] = Field(
        examples=[
            [
                {
                    "picture": "okapi-1.jpg",
                    "unknown": False,
                    "answers": [{"category": "okapi", "probability": 0.91, "origin": "novel"}],
                }
            ]
        ]
    )


class Features(_Wire):
    """Features (n, d) of n pictures."""

    width: int = Field(description="d", examples=[1280])
    features: list[list[float]] = Field(examples=[[[0.12, -0.5]]])


class Categories(_Wire):
    """Categories, and how many of them are base and taught ones."""

    base: int = Field(examples=[0])
    taught: int = Field(examples=[1])
    categories: list[Category] = Field(examples=[[_CATEGORY]])


class Lesson(Categories):
    """The categories that were taught, and the places of pictures left out, from 0."""

    skipped: list[int] = Field(examples=[[]])


class Change(_Wire):
    """Another name, or whether a base category is hidden."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "giraffe"}, {"hidden": True}],
            "minProperties": 1,
            "maxProperties": 1,
        },
    )
    name: str = Field(default="", max_length=1000)
    hidden: bool = False

    @property
    def renames(self) -> bool:
        """Say whether it is another name."""
        return "name" in self.model_fields_set

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("send either a new 'name' or 'hidden'")
        return self


class Share(_Wire):
    """A category and how much of something it has."""

    category: str = Field(examples=["zebra"])
    share: float = Field(examples=[0.31])


class Shares(_Wire):
    """How a taught category is related to others."""

    category: str = Field(examples=["okapi"])
    relation: str = Field(description="leans_on, competes_with or resembles", examples=["competes_with"])
    shares: list[Share]


class Duplicates(_Wire):
    """Examples whose pictures were taught twice."""

    category: str = Field(examples=["okapi"])
    duplicates: list[Duplicate] = Field(examples=[[{"example": 4, "other": 1, "category": "okapi"}]])


class KeptExample(_Wire):
    """What is kept of a picture."""

    id: int = Field(examples=[4])
    added: float = Field(description="Seconds since 1970.", examples=[1767225600.0])
    feature: list[float] | None = Field(examples=[[0.12, -0.5]])
    thumbnail: str | None = Field(description="A small JPEG in base64.", examples=[None])


class ExampleList(_Wire):
    """The examples of a taught category."""

    category: str = Field(examples=["okapi"])
    examples: list[KeptExample]


class Restored(_Wire):
    """How many examples came to each category."""

    restored: dict[str, int] = Field(examples=[{"okapi": 2}])


class State(_Wire):
    """How the service is."""

    status: str = Field(examples=["ok"])


class Input(_Wire):
    """How pictures are prepared."""

    size: int = Field(examples=[224])
    short_side: int | None = Field(examples=[256])


class ModelInfo(_Wire):
    """What the service computes with."""

    recollect: str = Field(description="The version of the service.", examples=["0.1.0"])
    fingerprint: str = Field(description="What taught categories belong to.", examples=["5f0c…"])
    extractor: str = Field(examples=["efficientnet-lite0"])
    classifier: str = Field(examples=["cosine"])
    generator: str = Field(examples=["ridge"])
    base_categories: int = Field(examples=[1000])
    width: int = Field(description="Numbers in a feature.", examples=[1280])
    input: Input
    says_unknown: bool = Field(description="Whether the model can answer 'unknown'.")
    search: str = Field(
        description="How pictures are compared with taught categories: with each, 'exact', or by an 'index'.",
        examples=["exact"],
    )
    drawn: bool = Field(description="Whether it was trained on characters, which can be drawn.")
    needs_token: bool = Field(description="Whether changes need a token.")
    weights_licence: str | None = Field(examples=["Apache-2.0"])
    pictures: int = Field(description="At most as many pictures in a call.", examples=[128])
    body_mb: int = Field(description="At most as many MiB in a call.", examples=[32])


CHANGE_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": Change.model_json_schema()}}}
}

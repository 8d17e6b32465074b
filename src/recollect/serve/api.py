"""What each call of the service does."""

import asyncio
import base64
import hmac
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError

from recollect.errors import MissingError
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Among, Category, Duplicate
from recollect.serve import metrics
from recollect.serve.engine import Engine, Question, Upload
from recollect.serve.problems import Problem
from recollect.serve.schemas import (
    BODY,
    CHANGE_BODY,
    NAMED_BODY,
    ONE_CATEGORY,
    PROBLEMS,
    Answers,
    Categories,
    Change,
    Duplicates,
    ExampleList,
    Features,
    KeptExample,
    Lesson,
    ModelInfo,
    Picture,
    Restored,
    Share,
    Shares,
    State,
)
from recollect.serve.uploads import read_uploads
from recollect.store import tidy

_LONGEST_CHANGE = 64 << 10  # bytes
_BINARY = "application/octet-stream"
_bearer = HTTPBearer(auto_error=False, description="The token that the service was started with.")
Top = Annotated[int, Query(ge=1, le=1000, description="How many answers.")]


def require_token(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Refuse a request without the token, if the service has one."""
    token = request.app.state.settings.token
    if token is not None and (
        given is None or not hmac.compare_digest(given.credentials.encode(), token.encode())
    ):
        wrong = "the token is wrong" if given else "this call needs a token"
        raise Problem(
            401, f"{wrong}: send the header 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
        )


def require_known_parameters(request: Request) -> None:
    """Refuse a parameter that the call does not have, such as a misspelt one."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            possible = f"there are {', '.join(known)}" if known else "there are none"
            raise Problem(422, f"there is no parameter '{name[:100]}' here: {possible}")


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


EngineOf = Annotated[Engine, Depends(_engine)]
_checked = Depends(require_known_parameters)
public = APIRouter(prefix="/v1", responses=PROBLEMS, dependencies=[_checked])
private = APIRouter(prefix="/v1", responses=PROBLEMS, dependencies=[Depends(require_token), _checked])
operation = APIRouter(tags=["operation"], responses=PROBLEMS)


@public.post("/predict", openapi_extra=BODY)
async def predict(
    request: Request, engine: EngineOf, top: Top = 5, among: Among = "all", unknown: bool = True
) -> Answers:
    """Name what pictures show. Send one picture as the body, or several as `picture` in a form."""
    found = await read_uploads(request, engine.limits)
    uploads = [one.upload for one in found]
    answers = await engine.predict(uploads, Question(top, among, unknown))
    return Answers(
        predictions=[
            Picture(picture=upload.name, unknown=given[0].origin == "unknown", answers=given)
            for upload, given in zip(uploads, answers, strict=True)
        ]
    )


@public.post("/features", openapi_extra=BODY)
async def features(request: Request, engine: EngineOf) -> Features:
    """Return the features of pictures, for your own use."""
    found = await engine.features([one.upload for one in await read_uploads(request, engine.limits)])
    return Features(width=found.shape[1], features=found.tolist())


@public.get("/model")
async def model(request: Request, engine: EngineOf) -> ModelInfo:
    """Describe the model."""
    info: ModelInfo = request.app.state.info
    return info.model_copy(update={"search": engine.recognizer.search})


@public.get("/categories")
async def categories(engine: EngineOf) -> Categories:
    """List all categories: base ones first, then taught ones in order of teaching."""
    known = await engine.call(engine.recognizer.categories)
    taught = sum(one.origin == "novel" for one in known)
    return Categories(base=len(known) - taught, taught=taught, categories=known)


@public.get("/categories/{name:path}", responses=ONE_CATEGORY)
async def category(name: str, engine: EngineOf) -> Category:
    """Return one category."""
    return _find(await engine.call(engine.recognizer.categories), name)


@private.post("/categories", openapi_extra=NAMED_BODY)
async def teach(
    request: Request,
    engine: EngineOf,
    name: Annotated[str | None, Query(max_length=1000, description="What the pictures show.")] = None,
    thumbnails: Annotated[bool, Query(description="Keep a small copy of each picture.")] = False,
    keep_duplicates: Annotated[
        bool, Query(description="Count pictures again that were taught before.")
    ] = False,
) -> Lesson:
    """Add categories from pictures, or pictures to known ones: all of them or none.

    In a form, each `name` is that of the `picture` files after it. Pictures that their category was taught
    before are left out; `skipped` has their places among those that were sent, from 0.
    """
    given: list[tuple[str, Upload]] = []
    for one in await read_uploads(request, engine.limits):
        if one.name is not None and name is not None:
            raise Problem(422, "the name is in the query and in the form: send it in one of them")
        shown = one.name if one.name is not None else name
        if shown is None:
            raise Problem(422, "what do the pictures show? Send ?name=NAME, or 'name' before them in a form")
        given.append((tidy(shown), one.upload))
    skipped: list[int] = []
    taught = await engine.teach(given, thumbnails=thumbnails, skipped=None if keep_duplicates else skipped)
    novel = sum(one.origin == "novel" for one in taught)
    return Lesson(base=len(taught) - novel, taught=novel, categories=taught, skipped=skipped)


@private.delete("/categories/{name:path}", status_code=204, response_class=Response)
async def forget(name: str, engine: EngineOf) -> None:
    """Forget a taught category, or what a base category was taught."""
    await engine.call(engine.recognizer.forget, name)


@private.patch("/categories/{name:path}", openapi_extra=CHANGE_BODY, responses=ONE_CATEGORY)
async def change(name: str, request: Request, engine: EngineOf) -> Category:
    """Rename a category, or hide a base category from the answers."""
    content = await request.body()  # not before the token was seen
    if len(content) > _LONGEST_CHANGE:
        raise Problem(413, f"a change has at most {_LONGEST_CHANGE} bytes")
    try:
        wanted = Change.model_validate_json(content)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_context=False)]
        raise RequestValidationError(wrong) from error
    return await engine.call(_change, engine.recognizer, name, wanted)


@public.get("/explain/{name:path}")
async def explain(name: str, engine: EngineOf, request: Request, top: Top = 5) -> Shares:
    """Show which categories a taught one leans on, or competes with if the model pays no attention."""
    found = await engine.call(engine.recognizer.explain, name, top)
    attends = request.app.state.info.generator == "attention"
    return _shares(name, "leans_on" if attends else "competes_with", found)


@public.get("/resembles/{name:path}")
async def resembles(name: str, engine: EngineOf, top: Top = 5) -> Shares:
    """Show which categories the examples of a taught one resemble most."""
    return _shares(name, "resembles", await engine.call(engine.recognizer.resembles, name, top))


@private.get("/duplicates/{name:path}")
async def duplicates(name: str, engine: EngineOf) -> Duplicates:
    """Show which examples of a category were taught twice."""
    found: list[Duplicate] = await engine.call(engine.recognizer.duplicates, name)
    return Duplicates(category=tidy(name), duplicates=found)


@private.get("/examples")
async def examples(
    category: Annotated[str, Query(max_length=1000)],
    engine: EngineOf,
    features: Annotated[bool, Query(description="With the feature of each picture.")] = True,
) -> ExampleList:
    """Return what is kept of the pictures of a taught category."""
    kept = [
        KeptExample(
            id=one.id,
            added=one.added,
            feature=one.feature.tolist() if features else None,
            thumbnail=None if one.thumbnail is None else base64.b64encode(one.thumbnail).decode(),
        )
        for one in await engine.call(engine.recognizer.examples, category)
    ]
    return ExampleList(category=tidy(category), examples=kept)


@private.delete("/examples/{number}", status_code=204, response_class=Response)
async def forget_example(number: int, engine: EngineOf) -> None:
    """Forget one example; a category without examples is forgotten too."""
    await engine.call(engine.recognizer.forget_example, number)


@private.get("/taught", response_class=Response, responses={200: {"content": {_BINARY: {}}}})
async def backup(
    engine: EngineOf,
    category: Annotated[
        str | None, Query(max_length=1000, description="Only what this one was taught.")
    ] = None,
) -> Response:
    """Download everything that was taught, or what one category was taught."""
    headers = {"Content-Disposition": 'attachment; filename="taught.safetensors"'}
    content = await engine.call(engine.recognizer.backup, category)
    return Response(content, headers=headers, media_type=_BINARY)


@private.post(
    "/taught",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def restore(request: Request, engine: EngineOf) -> Restored:
    """Take over what a download holds and the service does not; what it knows stays."""
    return Restored(restored=await engine.call(engine.recognizer.restore, await request.body()))


@operation.get("/healthz")
async def healthz() -> State:
    """Say that the process is alive."""
    return State(status="ok")


@operation.get("/readyz")
async def readyz(engine: EngineOf) -> State:
    """Say that the model is loaded and its store can be read."""
    await asyncio.to_thread(engine.recognizer.make_store)  # not behind what others ask for
    return State(status="ready")


@operation.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def figures() -> Response:
    """Return the figures of the service, for Prometheus."""
    return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _find(known: list[Category], name: str) -> Category:
    for one in known:
        if one.name == tidy(name):
            return one
    raise MissingError(f"no category is called '{tidy(name)}'")


def _change(recognizer: Recognizer, name: str, change: Change) -> Category:
    if change.renames:
        return recognizer.rename(name, change.name)
    return (recognizer.hide if change.hidden else recognizer.unhide)(name)


def _shares(name: str, relation: str, found: list[tuple[str, float]]) -> Shares:
    shares = [Share(category=category, share=share) for category, share in found]
    return Shares(category=tidy(name), relation=relation, shares=shares)

"""The application of one worker process."""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.config import STARTUP_FAILURE

from recollect.errors import RecollectError
from recollect.modelfile import Header, is_drawn, read_header
from recollect.recognition.opening import DEFAULT
from recollect.recognition.recognizer import Recognizer
from recollect.serve import api, files, metrics
from recollect.serve.engine import Engine
from recollect.serve.gate import Gate
from recollect.serve.problems import Problem, of_http, of_ours, of_validation
from recollect.serve.protocol import PatientProtocol
from recollect.serve.schemas import Input, ModelInfo
from recollect.serve.settings import Settings
from recollect.system import machine

_log = logging.getLogger(__name__)


def create_app(settings: Settings) -> Gate:
    """Load the model and return the application."""
    PatientProtocol.limits = settings.limits
    threads = settings.threads or machine.usual_threads() or machine.cores()
    machine.set_threads(1)  # each thread of the engine computes alone
    machine.keep_freed_memory()
    recognizer = Recognizer.load(
        settings.model,
        settings.store or DEFAULT,
        device=settings.device,
        extractor=settings.extractor,
    )
    recognizer.make_store()  # so that one that cannot be written is noticed now
    return Gate(_calls(settings, recognizer, threads), settings)


def create_worker(settings: Settings) -> Gate:
    """Return the application of one of several processes; what fails in one would fail in each."""
    try:
        return create_app(settings)
    except RecollectError as error:
        _log.error("%s", error)
        sys.exit(STARTUP_FAILURE)


def _calls(settings: Settings, recognizer: Recognizer, threads: int) -> FastAPI:
    """Return the calls of the service, without what every request passes first."""
    header = read_header(settings.model)
    prepare = header.spec.preprocessing

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # takes long the first time, and would hold up others
        app.state.engine = Engine(recognizer, settings.limits, prepare, threads)
        yield
        await app.state.engine.close()
        metrics.close()

    app = FastAPI(
        title="Recollect",
        version=version("recollect"),
        summary="Teach image categories from a few pictures, and recognise them.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=alive,
        exception_handlers={
            Problem: of_ours,
            RecollectError: of_ours,
            RequestValidationError: of_validation,
            HTTPException: of_http,
            ClientDisconnect: _nobody,
            Exception: _bug,
        },
    )
    app.state.settings = settings
    app.state.info = _info(recognizer, header, settings)
    for router in (api.public, api.private, api.operation):
        app.include_router(router)
    files.add_page(app)
    return app


async def _nobody(_: Request, __: Exception) -> Response:
    """Answer a client that went away, for the log."""
    return Response(status_code=499)


async def _bug(_: Request, __: Exception) -> Response:
    return Problem(500, "a bug of the service; its log says more").response()


def _info(recognizer: Recognizer, header: Header, settings: Settings) -> ModelInfo:
    spec, licence = header.spec, header.provenance.get("weights_licence")
    return ModelInfo(
        recollect=version("recollect"),
        fingerprint=recognizer.fingerprint,
        extractor=spec.extractor,
        classifier=spec.classifier,
        generator=spec.generator,
        base_categories=len(spec.categories),
        width=recognizer.width,
        input=Input(size=spec.preprocessing.size, short_side=spec.preprocessing.short_side),
        says_unknown=header.calibration.unknown is not None,
        search=recognizer.search,
        drawn=is_drawn(header),
        needs_token=settings.token is not None,
        weights_licence=str(licence) if licence else None,
        pictures=settings.limits.pictures,
        body_mb=settings.limits.body_mb,
    )

"""Listen, in this process or in several."""

import logging
import os
import resource
import signal
import socket
import ssl
import tempfile
import threading
import time
import webbrowser
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from recollect.errors import ConfigError, brief
from recollect.serve.logs import CONFIG
from recollect.serve.settings import METRICS_FOLDER, Settings, is_loopback

_log = logging.getLogger(__name__)
_KEEP_ALIVE = 15  # seconds that an idle connection is kept
_POLL = 0.1  # seconds
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- every address, and one of them
_STARTING = 120  # seconds after which a worker that does not respond is started again


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; what was accepted by then is answered."""
    several = settings.workers > 1
    _allow_many_files()
    with ExitStack() as stack:
        sock = stack.enter_context(_listening(settings))
        if several:  # before the figures are made
            os.environ[METRICS_FOLDER] = stack.enter_context(tempfile.TemporaryDirectory())
        config = configured(settings)
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        if settings.token and not settings.tls_cert and not is_loopback(settings.host):
            _log.warning("without TLS, everyone on the network can read the token and the pictures")
        if not several:
            config.load()
        port = sock.getsockname()[1]
        _log.info("%s is served at %s://%s:%d", settings.model, scheme, host, port)
        if settings.open_page:
            here = _WILDCARDS.get(settings.host, settings.host)
            page = f"{scheme}://{f'[{here}]' if ':' in here else here}:{port}/"
            threading.Thread(target=_open_page, args=(page, (here, port)), daemon=True).start()
        # Uvicorn ends with the signal that it was sent; by then everything is answered, which is success.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        if not several:
            uvicorn.Server(config).run(sockets=[sock])
            _log.info("stopped; everything that was accepted is answered")
            return
        supervisor = Multiprocess(config, sockets=[sock])
        supervisor.run()
        if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
            raise ConfigError("the workers could not start: the log says why")


def configured(settings: Settings, log: dict[str, Any] | None = CONFIG) -> uvicorn.Config:
    """Return how uvicorn runs the application."""
    from recollect.serve.app import create_app, create_worker  # makes the figures
    from recollect.serve.protocol import PatientProtocol

    return uvicorn.Config(
        partial(create_worker if settings.workers > 1 else create_app, settings),
        factory=True,
        workers=settings.workers,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=log,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_worker_healthcheck=_STARTING,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def _open_page(page: str, address: tuple[str, int]) -> None:
    """Open the page in a browser as soon as connections are accepted, which is when the model is loaded."""
    while True:
        with suppress(OSError), socket.create_connection(address, timeout=1):
            break
        time.sleep(_POLL)
    if not webbrowser.open(page):
        _log.warning("there is no browser here: open %s elsewhere", page)


def _listening(settings: Settings) -> socket.socket:
    """Return a socket at the address, after a look at the certificate."""
    try:
        if settings.tls_cert is not None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_cert, settings.tls_key
            )
    except OSError as error:  # of which errors of the certificate are a kind
        raise ConfigError(
            f"cannot use {settings.tls_cert} with {settings.tls_key}: {brief(error)}"
        ) from error
    sock = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {brief(error)}; choose another --port "
            "or --host"
        ) from error
    return sock


def _allow_many_files() -> None:
    """Allow as many open files, and so connections, as the system lets us."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

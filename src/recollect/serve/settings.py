"""What the service is told when it starts."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from recollect.errors import ConfigError
from recollect.images import MOST_PIXELS

TOKEN_VARIABLE = "RECOLLECT_TOKEN"  # noqa: S105 -- its name, not a token
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the variable with the place where worker processes count
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Limits:
    """How much one client, and all of them together, may ask for."""

    body_mb: int = 32  # of one request
    memory_mb: int = 256  # of the bodies of all requests
    megapixels: int = 50  # of a picture
    pictures: int = 128  # in a request
    categories: int = 10_000  # taught ones
    examples: int = 1000  # of a category
    queue: int = 256  # pictures that are waiting or being worked on
    batch: int = 16  # pictures in one pass of the extractor
    connections: int = 1000
    patience: float = 20.0  # seconds that a client may keep us waiting


@dataclass(frozen=True)
class Settings:
    """The model to serve, where, and for whom."""

    model: Path
    store: str | None = field(default=None, repr=False)  # may hold a password
    extractor: str | None = None
    device: str = "auto"
    threads: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()  # names under which clients know the service
    tls_cert: Path | None = None
    tls_key: Path | None = None
    open_page: bool = False  # in a browser, once it can be reached
    limits: Limits = Limits()

    def check(self) -> None:
        """Refuse what would not be safe, or would not work."""
        if self.token is not None and (len(self.token) < _SHORTEST_TOKEN or not self.token.isascii()):
            raise ConfigError(
                f"the token is shorter than {_SHORTEST_TOKEN} characters or not ASCII: make one with "
                "`openssl rand -hex 32`"
            )
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: set a token in the environment "
                f"variable {TOKEN_VARIABLE} for whoever may teach, or listen on 127.0.0.1"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together: give both, or neither")
        if self.workers > 1 and self.store == "memory:":
            raise ConfigError("--workers share what is taught through a file: name one with --store")
        if self.limits.queue < self.limits.pictures or self.limits.memory_mb < self.limits.body_mb:
            raise ConfigError(
                "--queue must be at least --max-pictures, and --max-memory at least --max-body: or there "
                "would never be room for the largest requests"
            )
        if self.limits.megapixels * 1_000_000 > MOST_PIXELS:
            raise ConfigError(f"--max-megapixels is at most {MOST_PIXELS // 1_000_000}")


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

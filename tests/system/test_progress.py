"""Progress off a terminal: a line every half minute on standard error, none when quiet."""

import pytest

from recollect.system import progress


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that a test moves by hand; and nobody is quiet afterwards."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_quiet", False)
    return now


def work(clock, steps, seconds, note=""):
    with progress.bar("training", steps) as advance:
        for _ in range(steps):
            clock[0] += seconds
            advance(1, note)


def test_a_line_every_half_minute(clock, capsys):
    work(clock, 20, 10.0, "loss 1.2")
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 6
    assert lines[0] == "training: 3 of 20, about 3 min left; loss 1.2"
    assert lines[-1] == "training: 18 of 20, about 20 s left; loss 1.2"


def test_what_is_quick_prints_nothing(clock, capsys):
    work(clock, 29, 1.0)
    assert capsys.readouterr() == ("", "")


def test_what_was_done_before_counts_as_done_but_not_for_the_speed(clock, capsys):
    with progress.bar("training", 100, done=50) as advance:
        clock[0] += 60
        advance(10, "")
    assert capsys.readouterr().err == "training: 60 of 100, about 4 min left\n"


def test_quiet_prints_nothing(clock, capsys):
    progress.be_quiet()
    work(clock, 20, 10.0)
    progress.say("wrote answers.png")
    assert capsys.readouterr() == ("", "")


def test_items_pass_through_in_order(clock, capsys):
    seen = []
    for item in progress.track("abcdef", "reading", 6):
        clock[0] += 20
        seen.append(item)
    assert seen == list("abcdef")
    assert capsys.readouterr().err.startswith("reading: 2 of 6")

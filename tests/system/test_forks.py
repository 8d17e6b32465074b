"""Forks wait for what other threads are doing."""

import os
import threading
import time

import pytest

from recollect.system.forks import Lock, undisturbed


def exit_code(work=lambda: None):
    """Fork, do something in the child, and return how the child ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("inside", [undisturbed, Lock], ids=["computing", "locked"])
def test_a_fork_waits_for_other_threads(inside):
    began, ended = threading.Event(), threading.Event()
    here = inside()

    def work():
        with here:
            began.set()
            time.sleep(0.2)
            ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    assert exit_code(lambda: os._exit(0 if ended.is_set() else 1)) == 0
    thread.join()


def test_a_lock_can_be_taken_again_in_the_child_and_by_the_thread_that_forks():
    lock = Lock()

    def take():
        with lock, undisturbed(), lock:
            pass

    with lock, lock:
        assert exit_code(take) == 0
        take()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_a_thread_that_is_inside_can_go_deeper_while_a_fork_waits():
    lock, began, waiting = Lock(), threading.Event(), threading.Event()

    def work():
        with lock:
            began.set()
            waiting.wait(10)
            time.sleep(0.1)
            with undisturbed(), lock:
                pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    began.wait()
    threading.Timer(0.1, waiting.set).start()
    assert exit_code() == 0
    thread.join(10)
    assert not thread.is_alive()


def test_threads_wait_for_a_fork_that_waits_and_go_on_afterwards():
    lock, order = Lock(), []

    def first():
        with lock:
            time.sleep(0.3)
            order.append("first")

    def second():
        with lock:
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    time.sleep(0.1)
    later = threading.Timer(0.1, threads[1].start)
    later.start()
    assert exit_code() == 0
    later.join()
    threads[1].join(10)
    assert order == ["first", "second"]

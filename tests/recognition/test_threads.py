"""A recogniser that threads share: every answer is of one moment."""

import threading

import pytest

from recollect.backends.torch import TorchBackend
from recollect.recognition.recognizer import Recognizer


@pytest.mark.parametrize("change", ["teach", "forget"])
def test_scores_and_their_categories_are_of_one_moment(tiny_model, make_images, change):
    recognizer = Recognizer(TorchBackend(tiny_model))
    pictures = make_images([4]).take([0, 1, 2, 3])
    for name in ("okapi", "tapir", "quagga"):
        recognizer.teach(name, pictures[0])
    tried = threading.Event()

    def interfere():
        tried.set()
        if change == "teach":
            recognizer.teach("numbat", pictures[1])
        else:
            recognizer.forget("okapi")

    other = threading.Thread(target=interfere)
    products = recognizer._known.vectors.products

    def slow(features):
        """Another thread changes the categories after scores were computed, if it can."""
        found = products(features)
        other.start()
        tried.wait()
        other.join(0.2)
        return found

    recognizer._known.vectors.products = slow
    answers = recognizer.predict(pictures[2], top=99, among="novel")
    recognizer._known.vectors.products = products
    other.join()
    assert {answer.category for answer in answers} == {"okapi", "tapir", "quagga"}
    after = {answer.category for answer in recognizer.predict(pictures[2], top=99, among="novel")}
    assert after == {"okapi", "tapir", "quagga"} ^ {"numbat" if change == "teach" else "okapi"}

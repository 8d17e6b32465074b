"""The recogniser: a model and the categories it has been taught since."""

"""What people hold: a model and the categories it has been taught since."""

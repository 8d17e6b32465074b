"""Stage 1 and stage 2: from pictures of base categories to a model file."""

"""Figures over few-shot tasks for any scoring function, their tables and pictures."""

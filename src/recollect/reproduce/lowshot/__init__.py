"""The paper's third table: the low-shot benchmark, from data to page."""

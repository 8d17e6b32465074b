"""The paper's tables and figure, from data to page."""

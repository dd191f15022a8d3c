"""Drawings of plain arrays: in characters, on a terminal, as figures, and in notebooks."""

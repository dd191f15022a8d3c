"""The page itself: HTML, a style sheet and ES modules, as a browser takes them."""

from importlib.resources import files
from pathlib import Path

FRONT = Path(str(files("limelight.explorer.front")))

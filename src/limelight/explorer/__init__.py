"""The explorer: a page on which an attention matrix of any size can be looked at, and its local server."""

from limelight.explorer.page import save_page
from limelight.explorer.serving import Explorer, explore

__all__ = ["Explorer", "explore", "save_page"]

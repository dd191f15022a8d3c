"""Settings of the documentation site: ``sphinx-build -W docs site`` (with ``pip install '.[docs]'``)."""

from __future__ import annotations

import limelight

project = "limelight"
copyright = "the limelight authors"
version = release = limelight.__version__

extensions = [
    "myst_nb",  # Markdown, and notebooks that are executed
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "limelight"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]

nb_execution_mode = "force"  # what a page shows is what this version printed
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {
    "members": True,
    "show-inheritance": False,
    # What every mask and bias has is described once, with their base classes.
    "exclude-members": "allows, lower, values, tensors, batch_and_heads, cache_key",
}
napoleon_google_docstring = True

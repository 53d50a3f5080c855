"""Configure Sphinx for the documentation of farm: `tools/docs` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "_extensions"), str(Path(__file__).parent.parent)]

import farm  # noqa: E402

project = "farm"
author = "the authors of farm"
version = release = farm.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "reference_pages"]
exclude_patterns = ["_extensions"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
myst_all_links_external = False

default_role = "code"  # a single backtick in a docstring or in a command's help
highlight_language = (
    "none"  # of code whose language is not named, such as the examples of the commands
)
smartquotes = False  # `--option` stays two hyphens
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
python_display_short_literal_types = True

# Everything that a page needs is a file of the site: nothing is fetched from a network.
html_theme = "furo"
html_title = "farm"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["farm.css"]
html_js_files = ["farm.js"]
html_extra_path = sorted(
    path.name for path in Path(__file__).parent.glob("*.svg")
)  # of <picture> elements
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

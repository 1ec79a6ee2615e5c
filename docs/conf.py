"""How the site is built: ``make docs``, or ``sphinx-build --fail-on-warning docs build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

from stream import VERSION

sys.path.insert(0, str(Path(__file__).parent))

project = "Sotto"
release = version = VERSION
html_title = f"Sotto {release}"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "extensions.folders",
    "extensions.mathml",
    "extensions.reference",
]
exclude_patterns = ["extensions"]
nitpicky = False
highlight_language = "text"

nb_execution_mode = "force"  # a notebook keeps no outputs: what a page shows is what its code prints today
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_merge_streams = True

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
myst_dmath_allow_labels = False
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_type_aliases = {name: name for name in ("Source", "Request", "Query", "Headers")}
python_maximum_signature_line_length = 88

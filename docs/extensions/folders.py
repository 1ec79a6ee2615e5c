"""Replaces links to folders by their text: the site has no pages for folders.

Files that are linked become part of the site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the links of each page before Sphinx resolves them."""
    app.connect("doctree-read", _name_folders)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _name_folders(app: Sphinx, page: nodes.document) -> None:
    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(page.findall(pending_xref)):
        if link.get("reftype") == "myst" and (here / str(link["reftarget"])).is_dir():
            link.replace_self(link.children[0].children)

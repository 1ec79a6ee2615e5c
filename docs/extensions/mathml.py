"""Converts formulas to MathML when the site is built.

Browsers render MathML without scripts, so pages need no external files. An unreadable formula is a warning, which fails
the build.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_SAME = {r"\\dots(?![a-zA-Z])": r"\\ldots", r"\\[Bb]ig[glr]*(?![a-zA-Z])": "", "⊥": r"\\bot ", "⊤": r"\\top "}
_SHORT_FRACTION = re.compile(r"(\\[dt]?frac)\s*(\w)\s*(\w)")

logger = logging.getLogger(__name__)


def to_mathml(formula: str, *, block: bool) -> str:
    """Convert a LaTeX formula to MathML; raise MathError for unknown commands."""
    for pattern, replacement in _SAME.items():
        formula = re.sub(pattern, replacement, formula)
    formula = _SHORT_FRACTION.sub(r"\1{\2}{\3}", formula)
    return str(tex2mathml(formula, as_block=block))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_rendered(node, block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{_rendered(node, block=True)}</div>')
    raise nodes.SkipNode


def _rendered(node: nodes.Element, *, block: bool) -> str:
    try:
        return to_mathml(node.astext(), block=block)
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node, type="mathml")
        return f"<code>{escape(node.astext())}</code>"

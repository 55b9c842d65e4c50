"""The jaxpr front end: ``trace`` a function or ``convert`` a closed jaxpr to a ``Graph``.

Reading order: ``trace`` (entry points), ``lowering`` (the walk), then the rules, one family a file.
"""

from graph_kernel.from_jaxpr.dims import DimSpec, DimTranslator, Variable
from graph_kernel.from_jaxpr.trace import Traced, convert, from_closed_jaxpr, trace

__all__ = ["DimSpec", "DimTranslator", "Traced", "Variable", "convert", "from_closed_jaxpr", "trace"]

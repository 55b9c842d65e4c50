"""Makes ``dvm_double`` importable: tests are collected with importlib, which adds no folders to the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

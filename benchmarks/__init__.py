"""Measurements: ``python -m benchmarks.demo`` is the main job; see docs for what each one shows."""

"""The ``dvm`` command: one program with verbs. Each verb is a module of this package and is imported only when it is used."""

from __future__ import annotations

import importlib
from typing import Any

import click

from dvm.cli.common import guarded

VERBS = {
    "compile": "compile_command",
    "run": "run_command",
    "inspect": "inspect_command",
    "dis": "dis_command",
    "explain": "explain_command",
    "profile": "profile_command",
    "memory": "memory_command",
    "opt": "opt_command",
    "report": "report_command",
    "compare": "compare_command",
    "bench": "bench_command",
}


class Verbs(click.Group):
    """Loads verbs lazily and turns every failure into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return getattr(importlib.import_module(f"dvm.cli.{VERBS[cmd_name]}"), "command")  # noqa: B009

    def invoke(self, ctx: click.Context) -> Any:
        return guarded(ctx, super().invoke)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dvm-compiler", prog_name="dvm")
def main() -> None:
    """Compiles a tensor program once and runs it at every shape.

    \b
    dvm compile examples/softmax.onnx -o softmax.dvm --dim batch=1:64
    dvm run softmax.dvm --random x:2x128
    """

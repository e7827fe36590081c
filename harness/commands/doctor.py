"""`fencepost doctor`: what this machine has, and what is missing for what."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from fencepost.harness import docker_engine
from fencepost.harness.clock.compilers import compilers
from fencepost.harness.clock.preload import explain_preload, find_preload
from fencepost.harness.commands.options import EXIT_PASS, EXIT_USAGE, console_for_tables
from fencepost.harness.errors import FencepostError
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.network.engines import check_network
from fencepost.harness.network.toxiproxy_binary import find_binary
from fencepost.harness.postgres.binaries import find_binaries, installed_versions
from fencepost.harness.postgres.choice import DOCKER, DSN, ProviderChoice

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ASKED_FOR = {DOCKER: ["Docker"], DSN: ["named server"]}
"""What must be there as well, by the provider that was asked for."""


@dataclass(frozen=True)
class Finding:
    part: str
    found: bool
    told: str
    needed_for: str


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor", help="say what was found on this machine, and what is missing for what"
    )
    parser.add_argument(
        "--pg", default="embedded", metavar="PROVIDER", help="a provider that must be usable, and is tried"
    )
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    findings = [
        _postgres(),
        _compiler(),
        _clock(),
        _servers(),
        _toxiproxy(),
        _docker(),
        _named_server(arguments.pg),
        _browser(),
    ]
    table = Table()
    for name in ("part", "found", "what", "needed for"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        mark = Text("yes", "green") if finding.found else Text("no", "yellow")
        table.add_row(finding.part, mark, Text(finding.told), finding.needed_for)
    console_for_tables().print(table)
    essential = ["PostgreSQL", "embedded servers", *ASKED_FOR.get(ProviderChoice(arguments.pg).name, [])]
    found = {finding.part: finding.found for finding in findings}
    return EXIT_PASS if all(found[part] for part in essential) else EXIT_USAGE


def _postgres() -> Finding:
    versions = installed_versions()
    try:
        chosen = find_binaries()
    except FencepostError as error:
        return Finding("PostgreSQL", False, str(error), "everything")
    others = ", ".join(found.version for found in versions if found.bindir != chosen.bindir)
    told = f"{chosen.version} in {chosen.bindir}" + (f"; also {others}" if others else "")
    return Finding("PostgreSQL", True, told, "everything")


def _compiler() -> Finding:
    found = [compiler.name for compiler in compilers()]
    told = ", ".join(found) if found else "none: install gcc or clang, or `pip install ziglang`"
    return Finding("C compiler", bool(found), told, "building the clock preload (once)")


def _clock() -> Finding:
    try:
        told, found = explain_preload(), find_preload() is not None
    except FencepostError as error:
        told, found = str(error), False
    return Finding("movable clock", found, told, "expiring leases without rewriting rows or waiting")


def _servers() -> Finding:
    """The proof of the pudding: starts both servers and closes them again."""
    try:
        with Lab(LabOptions()) as lab:
            return Finding(
                "embedded servers", True, f"started and stopped {lab.server_version}", "everything"
            )
    except FencepostError as error:
        return Finding("embedded servers", False, str(error), "everything")


def _toxiproxy() -> Finding:
    needed_for = "network faults by Toxiproxy"
    try:
        check_network("toxiproxy")
        found = find_binary()
    except FencepostError as error:
        return Finding("Toxiproxy", False, str(error), needed_for)
    return Finding("Toxiproxy", True, f"{found.version}, {found.path} (by {found.found_by})", needed_for)


def _docker() -> Finding:
    try:
        with docker_engine.engine() as client:
            told = docker_engine.describe(client)
    except FencepostError as error:
        return Finding("Docker", False, str(error), "--pg docker: servers in containers")
    return Finding("Docker", True, told, "--pg docker: servers in containers")


def _named_server(pg: str) -> Finding:
    needed_for = "--pg dsn:…: a server of your own"
    choice = ProviderChoice(pg)
    if choice.name != DSN:
        return Finding(
            "named server", False, "none named: `fencepost doctor --pg dsn:…` tries one", needed_for
        )
    try:
        return Finding("named server", True, choice.try_out(), needed_for)
    except FencepostError as error:
        return Finding("named server", False, str(error), needed_for)


def _browser() -> Finding:
    path = _first_on_path(BROWSERS)
    told = path or "none of " + ", ".join(BROWSERS)
    return Finding("browser", path is not None, told, "looking at reports, and their own tests")


def _first_on_path(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)

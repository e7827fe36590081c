"""The `fencepost` command: 0 pass, 1 fail, 3 inconclusive, 2 wrong use."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from fencepost.harness.commands import (
    adapter,
    doctor,
    explore,
    listing,
    race,
    replay,
    report,
    run,
    shrink,
    twins,
)
from fencepost.harness.commands.options import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_USAGE
from fencepost.harness.errors import FencepostError, UsageError


class OneSentenceParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is what --help is for."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"fencepost: {message}; see `{self.prog} --help`.\n")


def parser() -> argparse.ArgumentParser:
    top = OneSentenceParser(
        prog="fencepost", description="Replays the races that lease-based job queues on PostgreSQL lose."
    )
    top.add_argument("--version", action="version", version=f"fencepost {version('fencepost')}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command in (race, run, explore, replay, shrink, report, listing, twins, adapter, doctor):
        command.add_parser(commands)
    for subcommand in commands.choices.values():
        # Also after the command, where it is typed; SUPPRESS keeps it from undoing one typed before.
        subcommand.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.perform(arguments))
    except UsageError as error:
        return _give_up(error, EXIT_USAGE, debug=arguments.debug)
    except FencepostError as error:
        return _give_up(error, EXIT_INCONCLUSIVE, debug=arguments.debug)
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _give_up(error: FencepostError, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"fencepost: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

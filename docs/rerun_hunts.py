"""Runs the commands of docs/hunts.md again and puts what they print now below them: `make hunts`.

A command is an indented line that begins with `fencepost`; the indented block after it is its output, with its exit
code as the last line.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "hunts.md"
INDENT = "    "
COMMAND = re.compile(rf"^{INDENT}(fencepost .+)\n\n((?:{INDENT}.*\n|\n(?={INDENT}))+)", re.MULTILINE)


def rerun(found: re.Match[str]) -> str:
    command = found[1]
    sys.stdout.write(f"{command}\n")
    sys.stdout.flush()
    program = Path(sys.executable).with_name("fencepost")
    done = subprocess.run(
        [str(program), *shlex.split(command)[1:]], capture_output=True, text=True, check=False, timeout=3_600
    )
    if done.stderr:
        raise SystemExit(f"{command}\n{done.stderr}")
    lines = [*done.stdout.rstrip("\n").split("\n"), f"exit code {done.returncode}"]
    block = "\n".join(f"{INDENT}{line}".rstrip() for line in lines)
    return f"{INDENT}{command}\n\n{block}\n"


def main() -> None:
    PAGE.write_text(COMMAND.sub(rerun, PAGE.read_text()))


if __name__ == "__main__":
    main()

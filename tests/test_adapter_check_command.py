"""`fencepost adapter check` as a user types it: a wrong argument is one sentence, and what it found is an exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.harness.postgres.ports import free_port

MODULE = """
from fencepost.queue_impl.reference.adapter import ReferenceAdapter

class Right(ReferenceAdapter):
    pass

class Wrong(ReferenceAdapter):
    def reset(self, dsn):
        pass

class NeedsArguments(ReferenceAdapter):
    def __init__(self, name):
        super().__init__(name)

class CannotSayItsName(ReferenceAdapter):
    @property
    def name(self):
        raise RuntimeError("no name yet")

    @name.setter
    def name(self, name):
        pass

class Halves:
    name, capabilities = "halves", frozenset()

    def install(self, dsn):
        pass

nothing = object()
right = Right()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "checked_queues.py").write_text(MODULE)
    (tmp_path / "breaks_on_import.py").write_text("raise ValueError('not on\\nthis machine')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        ("nonsense", r"give MODULE:NAME or one of the known queues \(.*reference.*\)\."),
        ("checked_queues:", r"give MODULE:NAME or one of the known queues \(.*\)\."),
        ("checked_queues:Missing", r"checked_queues has no Missing\."),
        ("no_such_module:Queue", r"cannot import no_such_module \(No module named 'no_such_module'\)\."),
        ("breaks_on_import:Queue", r"importing breaks_on_import raised ValueError: not on this machine\."),
        (
            "checked_queues:NeedsArguments",
            r"NeedsArguments\(\) raised TypeError: .*'name'; name a class that takes no arguments, or an instance\.",
        ),
        (
            "checked_queues:nothing",
            r"nothing is not an adapter, it lacks name \(a non-empty string\), capabilities \(.*\), "
            r"install\(\), worker\(\), observe\(\), reset\(\) \(the contract is in docs/adapters\.md\)\.",
        ),
        (
            "checked_queues:Halves",
            r"Halves is not an adapter, it lacks worker\(\), observe\(\), reset\(\) \(.*\)\.",
        ),
        ("checked_queues:CannotSayItsName", r"looking at it raised RuntimeError: no name yet\."),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], queue: str, told: str
) -> None:
    for more in ([], ["--json"]):
        assert main(["adapter", "check", queue, *more]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert re.fullmatch(f"fencepost: adapter check {queue}: {told}\n", said.err), said.err


def test_an_unreachable_server_is_one_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = f"dsn:postgresql://nobody:secret@127.0.0.1:{free_port()}/nowhere"
    assert main(["adapter", "check", "checked_queues:right", "--pg", server]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"fencepost: --pg dsn: the server cannot be reached: .*\n", said.err), said.err
    assert "secret" not in said.err


def test_what_was_found_is_an_exit_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapter", "check", "checked_queues:right"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("nothing wrong was found")

    assert main(["adapter", "check", "checked_queues:Wrong", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["reset resets"]["ok"] is False
    assert checks["a claim is seen"] == {
        "name": "a claim is seen",
        "ok": None,
        "wrong": "'reset resets' failed",
        "advice": "",
    }

"""The `fencepost` command: what it prints, its exit codes, its one-sentence errors, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.harness.adapter import Twin
from fencepost.harness.cli import main
from fencepost.harness.commands.options import console_for_text
from fencepost.harness.trace import read_trace
from fencepost.harness.twin_json import as_json
from fencepost.harness.twins import Asked, Catch, SuiteReport, TwinReport, TwinSuite, load_suites, variants_of
from fencepost.harness.verdict import Verdict
from fencepost.queue_impl.reference.adapter import ReferenceAdapter
from fencepost.tests.fix_commands import (
    COMMAND_DEADLINE_S,
    FENCEPOST,
    Done,
    Household,
    children_of,
    eventually,
    private_tmp,
    run_fencepost,
    runs_in,
)
from fencepost.tests.fix_scenarios import installed

TWIN = "fencepost.queue_impl.twins:no_guard"

THE_RACE = [
    {"event": "lease_acquired", "job_id": "1", "worker": "A", "token": 1},
    {"event": "execution_started", "job_id": "1", "worker": "A", "token": 1},
    {"event": "lease_expired", "job_id": "1", "worker": "A", "token": 1, "how": "clock"},
    {"event": "lease_acquired", "job_id": "1", "worker": "B", "token": 2},
    {"event": "execution_started", "job_id": "1", "worker": "B", "token": 2},
    {"event": "worker_exit", "worker": "B", "reason": "success"},
    {
        "event": "stale_write_blocked",
        "job_id": "1",
        "worker": "A",
        "stale_token": 1,
        "current_token": 2,
        "reason": "token_mismatch",
    },
    {"event": "worker_exit", "worker": "A", "reason": "stale"},
]


# -- what it shows -----------------------------------------------------------------------------------------


def test_race_prints_the_log_and_the_summary(tmp_path: Path) -> None:
    done = run_fencepost("race", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [json.loads(line) for line in lines[:8]] == THE_RACE
    assert [list(json.loads(line)) for line in lines[:8]] == [list(event) for event in THE_RACE], (
        "their order"
    )
    blank, job, invariants, stands_on, verdict = lines[8:]
    assert blank == ""
    assert job == "job 1: succeeded, token 2, ledger entries 1"
    assert re.match(r"invariants evaluated \(times\): ledger_unique \d+, .*fence \d+", invariants)
    assert re.match(r"queue reference, PostgreSQL \d.* thread actors, time moved by clock", stands_on)
    assert re.fullmatch(r"verdict pass in \d+ ms, trace \.fencepost/traces/lease_race\.jsonl", verdict)
    assert read_trace(tmp_path / ".fencepost/traces/lease_race.jsonl").end["verdict"] == "pass"


def test_race_log_prints_json_only(tmp_path: Path) -> None:
    done = run_fencepost("race", "--log", "--actors", "process", "--trace-dir", "kept", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line) for line in done.out.splitlines()] == THE_RACE
    assert read_trace(tmp_path / "kept/lease_race.jsonl").header["actors"] == "process"


def test_race_on_a_twin_fails(tmp_path: Path) -> None:
    done = run_fencepost("race", "--queue", TWIN, cwd=tmp_path)
    assert (done.code, done.err) == (1, "")
    assert "lease_race on queue 'no_guard': fail" in done.out
    assert (
        "fence broken at step 7: A wrote to the ledger under token 1 while 2 was current (job 1)" in done.out
    )
    assert f"replay:  fencepost race --queue {TWIN}" in done.out
    assert "verdict fail in" in done.out


def test_run_repeats_a_family_and_shows_a_table(tmp_path: Path) -> None:
    done = run_fencepost("run", "lease_race", "--repeat", "2", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    (row,) = [line for line in done.out.splitlines() if line.startswith("│ lease_race ")]
    name, verdict, runs, _, digest = [cell.strip() for cell in row.strip("│").split("│")]
    assert (name, verdict, runs) == ("lease_race", "pass", "2")
    assert re.fullmatch(r"[0-9a-f]{12}", digest)
    assert re.search(r"^\d+ pass; traces in \.fencepost/traces$", done.out, re.MULTILINE)


def test_run_prints_one_json_object(tmp_path: Path) -> None:
    done = run_fencepost(
        "run",
        "late_fail",
        "lease_is_counted_by_the_database_clock",
        "--json",
        "--clock",
        "expire",
        cwd=tmp_path,
    )
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert (told["queue"], told["exit_code"]) == ("reference", 0)
    assert told["counts"] == {"pass": 2, "fail": 0, "inconclusive": 0, "known": 0, "skipped": 1}
    first, second, skipped = told["scenarios"]
    assert [first["name"], second["name"]] == ["late_fail[attempts_left]", "late_fail[last_attempt]"]
    assert (first["family"], first["verdict"], first["reasons"], first["runs"]) == (
        "lease_race",
        "pass",
        [],
        1,
    )
    assert len(first["canonical_hashes"]) == 1
    assert read_trace(tmp_path / first["trace"]).header["clock"] == "expire"
    assert skipped["verdict"] == "skipped"
    assert len(skipped["reasons"]) == 1
    assert "CLOCK" in skipped["reasons"][0]


def test_a_race_that_was_not_established_is_inconclusive(tmp_path: Path) -> None:
    queue = "fencepost.tests.fix_queues:nobody_reclaims"
    done = run_fencepost("run", "same_worker_name_reclaims_its_own_job", "--queue", queue, cwd=tmp_path)
    assert done.code == 3
    assert "inconclusive" in done.out
    assert "  - A2's claim found nothing to claim" in done.out
    assert "  - not witnessed: a second claim of one job, in the journal of executions" in done.out


def twin_report(*, caught: bool) -> SuiteReport:
    """The hunt itself is tested in test_twins.py; this is what one came to."""
    twin = Twin("no_fence", "A write is not judged.", "fence", ReferenceAdapter("no_fence"), "x:no_fence")
    catches = [Catch(installed("late_complete_while_b_runs"), Verdict.FAIL, ("fence",), 5)] if caught else []
    suite, twins = TwinSuite("reference", (twin,)), [TwinReport(twin, catches)]
    return SuiteReport(suite, variants_of([]), twins, [])


@pytest.mark.parametrize("caught", [True, False])
def test_twins_must_be_caught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caught: bool
) -> None:
    report = twin_report(caught=caught)
    monkeypatch.setattr("fencepost.harness.commands.twins.suites_of", lambda twins: [report.suite])
    monkeypatch.setattr("fencepost.harness.commands.twins.hunt_all", lambda *_, **__: [report])
    assert main(["twins"]) == (0 if caught else 1)
    shown = capsys.readouterr().out
    if caught:
        assert re.search(r"│ no_fence +│.*│ late_complete_while_b_runs +│ fence +│ 5 ", shown)
        clean = f"queue 'reference' is clean in {len(report.variants)} scenarios"
        assert f"1 of 1 twins caught by the invariant they name; {clean}" in shown
    else:
        assert re.search(r"│ no_fence +│.*│ NOT CAUGHT +│ fence should +│", shown)
        assert "0 of 1 twins caught by the invariant they name; SURVIVED: no_fence; queue 'ref" in shown
    assert main(["twins", "--json"]) == (0 if caught else 1)
    found = capsys.readouterr().out
    told = json.loads(found)["reference"]
    assert (told["clean"], told["all_caught"]) == (True, caught)
    (twin,) = told["twins"]
    assert (twin["name"], twin["breaks"], twin["caught"]) == ("no_fence", "fence", caught)
    wanted = {"scenario": "late_complete_while_b_runs", "verdict": "fail", "broke": ["fence"], "step": 5}
    assert twin["catches"] == ([wanted] if caught else [])

    monkeypatch.setattr("fencepost.harness.commands.twins.hunt_all", lambda *_, **__: pytest.fail("a hunt"))
    earlier = tmp_path / "earlier.json"
    earlier.write_text(found)
    assert main(["twins", "--from", str(earlier)]) == (0 if caught else 1)
    again = capsys.readouterr().out
    assert ("NOT CAUGHT" in again) is not caught
    assert main(["twins", "--from", str(earlier), "--json"]) == (0 if caught else 1)
    assert capsys.readouterr().out == found


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"--from .*earlier.json: No such file or directory\."),
        ("{", r"--from .*earlier.json: this is not what `fencepost twins --json` prints\."),
        ("[]", r"--from .*earlier.json: this is not what `fencepost twins --json` prints\."),
        ("{}", r"--from .*earlier.json: this is not what `fencepost twins --json` prints\."),
        ('{"reference": {"twins": []}}', r"--from .*earlier.json: this is not what .* prints\."),
    ],
)
def test_an_earlier_hunt_that_cannot_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, told: str
) -> None:
    earlier = tmp_path / "earlier.json"
    if content is not None:
        earlier.write_text(content)
    assert main(["twins", "--from", str(earlier)]) == 2
    assert re.search(told, capsys.readouterr().err)


def told_by(report: SuiteReport) -> dict[str, object]:
    return {report.suite.original: as_json(report)}


def full_report() -> SuiteReport:
    """Every twin there is, with every scenario: three of them caught no_guard, one could not be run."""
    (suite,) = load_suites()
    catching = ("workers_clock_is_wrong", "lease_race", "late_complete_while_b_runs")
    catches = [Catch(installed(name), Verdict.FAIL, ("fence",), 5) for name in catching]
    twins = [TwinReport(twin, catches if twin.name == "no_guard" else []) for twin in suite.twins]
    return SuiteReport(suite, variants_of([]), twins, [], not_run=["heartbeat_extends"])


def test_an_earlier_hunt_is_shown_of_fewer_scenarios_and_twins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "full.json"
    earlier.write_text(json.dumps(told_by(full_report())))
    from_it = ["--from", str(earlier)]

    assert main(["twins", *from_it]) == 1, "one twin of all was caught"
    assert "SURVIVED" in capsys.readouterr().out
    assert main(["twins", "lease_race", "--matrix", *from_it]) == 1, "most of the family catch nothing"
    shown = capsys.readouterr().out
    assert re.search(r"^late_complete_while_b_runs .* X", shown, re.MULTILINE)
    assert "heartbeat_extends" not in shown
    assert "not hunted with" not in shown, "by name, nothing is left out"

    assert main(["twins", "lease_race", "--twin", "no_guard", "--json", *from_it]) == 0
    shown = capsys.readouterr().out
    told = json.loads(shown)["reference"]
    assert told["asked"] == {"scenarios": ["lease_race"], "twins": ["no_guard"]}
    (twin,) = told["twins"]
    assert twin["name"] == "no_guard"
    assert [c["scenario"] for c in twin["catches"]] == ["lease_race", "late_complete_while_b_runs"]
    assert told["not_run"] == []
    assert set(told["scenarios"]) == {variant.name for variant in variants_of(["lease_race"])}

    told = complain(capsys, "twins", "--twin", "xyz", *from_it)
    assert told.startswith("--twin xyz: "), "and not that the file is of others"

    narrower = tmp_path / "narrower.json"
    narrower.write_text(shown)
    assert main(["twins", "--from", str(narrower), "--json"]) == 0, "of what was asked then"
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["heartbeat"], r"it is of other scenarios: it says nothing of '\w+(\[\w+\])?' and \d+ more"),
        (["heartbeat_extends"], r"it is of other scenarios: it says nothing of 'heartbeat_extends'"),
        (
            ["--twin", "no_guard", "--twin", "delay_ignored"],
            "it is of other twins: it says nothing of 'delay_ignored'",
        ),
    ],
)
def test_an_earlier_hunt_with_others_is_not_taken_for_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    full = full_report()
    twins = [entry for entry in full.twins if entry.twin.name == "no_guard"]
    asked = Asked(("lease_race",), ("no_guard",))
    earlier = tmp_path / "earlier.json"
    earlier.write_text(
        json.dumps(told_by(replace(full, variants=variants_of(["lease_race"]), twins=twins, asked=asked)))
    )
    said = complain(capsys, "twins", *arguments, "--from", str(earlier))
    assert re.fullmatch(rf"--from {earlier}: {told}\.", said)


def test_an_earlier_hunt_before_a_scenario_was_added_or_renamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = full_report()
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(told_by(replace(full, variants=full.variants[1:]))))
    name = re.escape(full.variants[0].name)
    told = complain(capsys, "twins", "--from", str(earlier))
    assert re.fullmatch(rf"--from .*: it is of other scenarios: it says nothing of '{name}'\.", told)
    earlier.write_text(json.dumps(told_by(replace(full, asked=Asked(("an_old_family",))))))
    told = complain(capsys, "twins", "--from", str(earlier))
    assert "it is of other scenarios or twins: No scenario or family is called 'an_old_family'" in told


def test_only_the_twins_named_are_hunted_and_must_be_caught(tmp_path: Path) -> None:
    hunt = ("twins", "late_fail", "--jobs", "1", "--json")
    done = run_fencepost(*hunt, "--twin", "no_guard", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    (twin,) = json.loads(done.out)["reference"]["twins"]
    assert (twin["name"], twin["caught"]) == ("no_guard", True)
    done = run_fencepost(*hunt, "--twin", "no_guard", "--twin", "delay_ignored", cwd=tmp_path)
    assert done.code == 1
    caught = {twin["name"]: twin["caught"] for twin in json.loads(done.out)["reference"]["twins"]}
    assert caught == {"no_guard": True, "delay_ignored": False}


def test_what_was_not_run_on_the_queue_is_not_called_clean() -> None:
    report = replace(twin_report(caught=True), variants=[installed("late_complete_while_b_runs")])
    report = replace(report, not_run=["late_complete_while_b_runs"])
    assert report.summary().endswith("is clean in 0 scenarios; not run: late_complete_while_b_runs")


def test_list_shows_every_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)["scenarios"]}
    assert told["lease_race"]["family"] == "lease_race"
    assert told["lease_race"]["sentence"].startswith("A stalls past its lease")
    assert told["lease_race"]["requires"] == ["FENCING"]
    assert told["lease_race"]["witnesses"]
    assert told["late_fail"]["variants"] == ["late_fail[attempts_left]", "late_fail[last_attempt]"]
    assert main(["list"]) == 0
    table = capsys.readouterr().out
    for name in told:
        assert name[:20] in table
    assert main(["list", "late_fail"]) == 0
    assert "lease_race " not in capsys.readouterr().out.replace("│ lease_race", "")


def test_doctor_says_what_was_found(tmp_path: Path) -> None:
    done = run_fencepost("doctor", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    for part in (
        "PostgreSQL",
        "C compiler",
        "movable clock",
        "embedded servers",
        "Toxiproxy",
        "Docker",
        "named server",
        "browser",
    ):
        assert re.search(rf"│ {part} +│ (yes|no) ", done.out), part


def test_doctor_names_a_toxiproxy_that_will_not_do(tmp_path: Path) -> None:
    done = run_fencepost("doctor", cwd=tmp_path, environment={"FENCEPOST_TOXIPROXY": "/no/where"})
    assert done.code == 0  # everything but one engine of network faults works without it
    assert re.search(r"│ Toxiproxy +│ no +│ FENCEPOST_TOXIPROXY=/no/where", done.out)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--network", "pigeon"], "--network pigeon: give one of gate, toxiproxy."),
        (
            ["--network", "toxiproxy", "--toxiproxy", "/no/where"],
            "--toxiproxy /no/where: there is no such file",
        ),
        (["--toxiproxy", "/no/where"], "has no use without --network toxiproxy"),
    ],
)
def test_a_network_that_cannot_be_had_is_one_sentence(options: list[str], told: str, tmp_path: Path) -> None:
    done = run_fencepost("race", *options, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert told in done.err and done.err.count("\n") == 1


def test_doctor_without_postgres_is_no_success(tmp_path: Path) -> None:
    done = run_fencepost("doctor", cwd=tmp_path, environment={"FENCEPOST_PG_BIN": str(tmp_path)})
    assert done.code == 2
    assert "Traceback" not in done.err
    assert re.search(r"│ PostgreSQL +│ no ", done.out)


def test_text_for_programs_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console_for_text().print('{"payload":":bug: [red]x[/red]"}' + "x" * 300)
    assert capsys.readouterr().out == '{"payload":":bug: [red]x[/red]"}' + "x" * 300 + "\n"


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory, and a temporary directory in which a server would be seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with private_tmp() as tmp:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp))
        yield tmp_path
        assert runs_in(tmp) == []


def complain(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that refuses its arguments."""
    try:
        code = main(arguments)
    except SystemExit as ended:  # argparse
        code = int(str(ended.code))
    said = capsys.readouterr()
    assert code == 2, said
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("fencepost: ")
    return line.removeprefix("fencepost: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "run nope",
            r"No scenario or family is called 'nope'; families: .*lease_race.*`fencepost list` shows",
        ),
        ("list nope", r"No scenario or family is called 'nope'"),
        ("twins nope", r"No scenario or family is called 'nope'"),
        ("twins --twin no_gard", r"--twin no_gard: there is no such twin; the nearest is 'no_guard'\."),
        (
            "twins lease_race --twin no_guard --twin xyz",
            r"--twin xyz: there is no such twin; docs/what-it-catches\.md lists them all\.",
        ),
        ("dance", r"argument COMMAND: invalid choice: 'dance' .*see `fencepost --help`\."),
        ("", r"the following arguments are required: COMMAND; see `fencepost --help`\."),
        ("race --fast", r"unrecognized arguments: --fast; see `fencepost --help`\."),
        ("race --actors fiber", r"--actors fiber: give one of thread, process\."),
        ("run --clock sundial", r"--clock sundial: give one of auto, clock, expire, wait\."),
        ("twins --actors fiber", r"--actors fiber: give one of thread, process\."),
        (
            "race --pg oracle",
            r"--pg oracle: give embedded, embedded:MAJOR \(as embedded:16\) or embedded:BINDIR, docker or .*\.",
        ),
        ("race --pg embedded:", r"--pg embedded:: give embedded, embedded:MAJOR"),
        (
            "race --pg embedded:99",
            r"PostgreSQL 99 was not found \(found: .*\): install it, or name its bin directory",
        ),
        ("race --pg embedded:9", r"PostgreSQL 9 is too old: ask for 14 or newer"),
        (
            "race --pg embedded:/nowhere",
            r"/nowhere is no PostgreSQL bin directory \(there is no /nowhere/postgres\)",
        ),
        ("run --repeat 0", r"--repeat 0: give a whole number from 1 on\."),
        ("run --repeat many", r"argument --repeat: invalid int value: 'many'; see `fencepost run --help`\."),
        (
            "race --queue nope",
            r"--queue nope: give MODULE:NAME or one of the known queues \(.*reference.*\)\.",
        ),
        ("race --queue no.such:q", r"--queue no\.such:q: cannot import no\.such \(No module named 'no'\)\."),
        ("race --queue json:nope", r"--queue json:nope: json has no nope\."),
        (
            "race --queue broken:queue",
            r"--queue broken:queue: importing broken raised ZeroDivisionError: division by zero\.",
        ),
        ("race --queue leaves:queue", r"--queue leaves:queue: importing leaves raised SystemExit: 0\."),
        (
            "race --queue partial:needs_arguments",
            r"--queue partial:needs_arguments: needs_arguments\(\) raised TypeError: .*'dsn'; "
            r"name a class that takes no arguments, or an instance\.",
        ),
        (
            "race --queue partial:nothing",
            r"--queue partial:nothing: nothing is not an adapter, it lacks name \(a non-empty string\), "
            r"capabilities \(a frozenset of Capability\), install\(\), worker\(\), observe\(\), reset\(\) "
            r"\(the contract is in docs/adapters\.md\)\.",
        ),
        ("race --queue partial:no_observe", r"no_observe is not an adapter, it lacks observe\(\) \("),
        ("race --queue partial:no_expire", r"no_expire is not an adapter, it lacks expire\(\) \("),
        (
            "race --trace-dir file/below",
            r"--trace-dir file/below: cannot write there \(Not a directory\); choose",
        ),
        (
            "run --trace-dir file",
            r"--trace-dir file: cannot write there \(File exists\); choose another directory\.",
        ),
    ],
)
def test_bad_input_is_told_in_one_sentence(
    alone: Path, capsys: pytest.CaptureFixture[str], arguments: str, told: str
) -> None:
    (alone / "file").write_text("")
    (alone / "broken.py").write_text("1 / 0\n")
    (alone / "leaves.py").write_text("raise SystemExit(0)\n")
    (alone / "partial.py").write_text(
        "from fencepost.harness.adapter import Capability\n"
        "class nothing: pass\n"
        "class needs_arguments:\n"
        "    def __init__(self, dsn): pass\n"
        "class no_observe:\n"
        "    name, capabilities = 'partial', frozenset()\n"
        "    install = worker = reset = print\n"
        "class no_expire(no_observe):\n"
        "    observe, capabilities = print, frozenset({Capability.EXPIRE})\n"
    )
    assert re.search(told, complain(capsys, *arguments.split()))


def test_postgres_that_is_missing_or_too_old(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_PG_BIN", str(alone / "nowhere"))
    assert re.match(r"FENCEPOST_PG_BIN is no PostgreSQL bin directory", complain(capsys, "race"))
    for name in ("postgres", "initdb"):
        (alone / name).write_text('#!/bin/sh\necho "postgres (PostgreSQL) 12.20"\n')
        (alone / name).chmod(0o755)
    monkeypatch.setenv("FENCEPOST_PG_BIN", str(alone))
    complain(capsys, "twins", "lease_race")
    told = complain(capsys, "run", "lease_race")
    assert told.startswith(
        "FENCEPOST_PG_BIN holds PostgreSQL 12.20, which is too old: name 14 or newer, or install"
    )


def test_a_queue_that_cannot_be_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "uninstallable.py").write_text(
        "from fencepost.queue_impl.reference.adapter import ReferenceAdapter\n"
        "class Queue(ReferenceAdapter):\n"
        "    def install(self, dsn): raise RuntimeError('no room')\n"
    )
    told = complain(capsys, "race", "--queue", "uninstallable:Queue")
    assert told == (
        "Queue 'reference' could not be installed: install() of queue 'reference' raised RuntimeError: no room."
    )


def test_debug_shows_the_traceback(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "run", "nope"], ["run", "nope", "--debug"]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith("Traceback (most recent call last):")
        assert "UsageError: No scenario or family is called 'nope'" in said.splitlines()[-1]


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment with no C compiler, neither on the path nor from PyPI."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "cp").symlink_to(str(shutil.which("cp")))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['ziglang'] = None\n")
    python_path = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH")]))
    return {"PATH": str(programs), "PYTHONPATH": python_path, "FENCEPOST_CC": ""}


def test_without_a_compiler_leases_are_expired_by_rewriting_rows(
    tmp_path: Path, no_compiler: dict[str, str]
) -> None:
    done = run_fencepost("race", cwd=tmp_path, environment=no_compiler)
    assert (done.code, done.err) == (0, "")
    assert read_trace(tmp_path / ".fencepost/traces/lease_race.jsonl").header["clock"] == "expire"
    assert json.loads(done.out.splitlines()[2])["how"] == "expire"
    assert "time moved by expire" in done.out


def test_without_a_compiler_the_clock_cannot_be_insisted_on(
    tmp_path: Path, no_compiler: dict[str, str]
) -> None:
    with private_tmp() as tmp:
        done = run_fencepost(
            "race", "--clock", "clock", cwd=tmp_path, environment={**no_compiler, "TMPDIR": str(tmp)}
        )
        assert runs_in(tmp) == []
    assert done == Done(
        2,
        "",
        "fencepost: the database's clock cannot be moved here: there is no C compiler and the installed wheel "
        "carries no built preload: install gcc or clang, or `pip install ziglang`\n",
    )


# -- the end of a run --------------------------------------------------------------------------------------


def running(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], Household]:
    """A command in the middle of its races, and all that belongs to it."""
    process = subprocess.Popen(
        [*FENCEPOST, "run", "lease_race", "--repeat", "100000", "--trace-dir", "traces", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(
            lambda: any(tmp_path.glob("traces/*.jsonl")) or process.poll() is not None,
            "a race was run",
            COMMAND_DEADLINE_S,
        )
        household = Household.of(process.pid)
        assert len(household.keepers) == 1, "nothing to look for afterwards"
        assert len(household.run_dirs) == 1
        assert len(household.servers) > 2
    except BaseException:
        process.kill()
        process.communicate(timeout=COMMAND_DEADLINE_S)
        raise
    return process, household


@pytest.mark.parametrize("actors", ["thread", "process"])
def test_ctrl_c_ends_a_run_with_nothing_left(tmp_path: Path, actors: str) -> None:
    process, household = running(tmp_path, "--actors", actors)
    assert bool(household.actors) == (actors == "process")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")
    household.is_gone()


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    process, household = running(tmp_path, "--actors", "process")
    assert len(household.actors) >= 2
    process.kill()
    process.communicate(timeout=30)
    household.is_gone()


@pytest.mark.parametrize("ending", ["ctrl-c", "kill"])
def test_the_end_of_a_hunt_leaves_nothing(tmp_path: Path, ending: str) -> None:
    """Every process of the pool has servers of its own. Ctrl-C goes to the whole process group, as from a terminal."""
    process = subprocess.Popen(
        [*FENCEPOST, "twins", "lease_race", "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def hunters() -> list[Household]:
        return [house for pid in children_of(process.pid) if (house := Household.of(pid)).servers]

    try:
        eventually(lambda: len(hunters()) == 2 or process.poll() is not None, "two labs", COMMAND_DEADLINE_S)
        houses = hunters()
        assert len(houses) == 2
        if ending == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=COMMAND_DEADLINE_S)
    if ending == "ctrl-c":
        assert (process.returncode, out, err) == (130, "", "")
    else:
        assert process.returncode == -signal.SIGKILL
    for house in houses:
        house.is_gone()

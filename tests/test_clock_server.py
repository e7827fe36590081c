"""The database's clock moves for every session at once, and a move that did not happen is an error."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from fencepost.harness.clock.preload import require_preload
from fencepost.harness.clock.server_clock import ClockDidNotMove, OffsetFile, ServerClock, read_server_us
from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.binaries import find_binaries, installed_versions
from fencepost.harness.postgres.embedded import EmbeddedServer, EmbeddedServers

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module", params=[15, 16, 18])
def servers(request: pytest.FixtureRequest) -> Iterator[EmbeddedServers]:
    if request.param not in {binaries.major for binaries in installed_versions()}:
        pytest.skip(f"PostgreSQL {request.param} is not installed here")
    with EmbeddedServers.start(binaries=find_binaries(str(request.param)), preload=require_preload()) as pair:
        yield pair


@pytest.fixture
def session(servers: EmbeddedServers) -> Iterator[psycopg.Connection]:
    with psycopg.connect(servers.test.dsn(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(servers: EmbeddedServers, session: psycopg.Connection) -> ServerClock:
    assert servers.test.clock_offset is not None
    return ServerClock(servers.test.clock_offset, lambda: read_server_us(session))


def _now_us(server: EmbeddedServer) -> int:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        return read_server_us(connection)


def test_every_session_sees_the_move_at_once(servers: EmbeddedServers, clock: ServerClock) -> None:
    with (
        psycopg.connect(servers.test.dsn(), autocommit=True) as one,
        psycopg.connect(servers.test.tcp_dsn(), autocommit=True) as other,
    ):
        before = [read_server_us(session) for session in (one, other)]
        now_before = one.execute("SELECT now()").fetchone()
        clock.advance(3600)
        after = [read_server_us(session) for session in (one, other)]
        now_after = one.execute("SELECT now()").fetchone()
        opened_after = _now_us(servers.test)
    for then, now in zip(before, after, strict=True):
        assert HOUR_US <= now - then < HOUR_US + 5_000_000
    assert opened_after >= after[1]
    assert now_before is not None
    assert now_after is not None
    assert now_after[0] - now_before[0] >= timedelta(hours=1)


def test_an_open_transaction_keeps_its_now_and_sees_the_clock(
    servers: EmbeddedServers, clock: ServerClock
) -> None:
    with psycopg.connect(servers.test.dsn()) as inside:
        first = inside.execute("SELECT now(), clock_timestamp()").fetchone()
        clock.advance(60)
        second = inside.execute("SELECT now(), clock_timestamp()").fetchone()
    assert first is not None
    assert second is not None
    assert second[0] == first[0]
    assert second[1] - first[1] >= timedelta(seconds=60)


def test_the_control_server_is_not_moved(servers: EmbeddedServers, clock: ServerClock) -> None:
    clock.advance(3600)
    assert servers.control.clock_offset is None
    assert abs(_now_us(servers.control) - time.time_ns() // 1000) < 5_000_000


def test_rewinding_moves_it_back(clock: ServerClock) -> None:
    before = clock.now_us()
    clock.rewind(1800.5)
    assert -1_800_500_000 <= clock.now_us() - before < -1_795_000_000
    clock.advance(1800.5)


def test_advancing_to_a_moment_goes_just_past_it(clock: ServerClock) -> None:
    moment = clock.now_us() + 90_000_000
    clock.advance_to_us(moment)
    assert moment < clock.now_us() < moment + 5_000_000
    passed = clock.now_us()
    clock.advance_to_us(moment)
    assert clock.now_us() - passed < 5_000_000


def test_the_smallest_move_counts(clock: ServerClock) -> None:
    before = clock.now_us()
    clock.advance(1e-9)
    assert clock.now_us() > before


def test_the_clock_stays_moved_across_a_crash(servers: EmbeddedServers, clock: ServerClock) -> None:
    clock.advance(3600)
    before = clock.now_us()
    servers.test.kill_all()
    assert 0 <= _now_us(servers.test) - before < 60_000_000


def test_durations_are_not_moved(session: psycopg.Connection, clock: ServerClock) -> None:
    """EXPLAIN measures by the monotonic clock, while the wall clock is an hour ahead before each row ends."""
    clock.advance(3600)
    row = session.execute("EXPLAIN (ANALYZE, FORMAT JSON) SELECT pg_sleep(0.01)").fetchone()
    assert row is not None
    assert 10 <= row[0][0]["Execution Time"] < 5_000


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, -math.inf, True, "60", None])
def test_only_a_positive_finite_number_moves_it(clock: ServerClock, seconds: float) -> None:
    before = clock.now_us()
    for move in (clock.advance, clock.rewind):
        with pytest.raises(UsageError, match="a clock moves by a"):
            move(seconds)
    assert clock.now_us() - before < 5_000_000


def test_a_move_beyond_what_the_file_holds_is_refused(clock: ServerClock) -> None:
    with pytest.raises(UsageError, match="stay below 290 years"):
        clock.advance(300 * 365 * 86400)


def test_a_server_that_does_not_read_the_file_is_noticed(
    servers: EmbeddedServers, session: psycopg.Connection, tmp_path: Path
) -> None:
    stray = OffsetFile.create(tmp_path / "clock")
    clock = ServerClock(stray, lambda: read_server_us(session))
    for move in (clock.advance, clock.rewind):
        with pytest.raises(ClockDidNotMove, match=r"does not read .*/clock"):
            move(30)
    with pytest.raises(ClockDidNotMove):
        clock.advance_to_us(clock.now_us() + 30_000_000)
    stray.close()


def test_a_clock_that_moves_too_far_is_noticed(tmp_path: Path) -> None:
    offset = OffsetFile.create(tmp_path / "clock")
    twice = ServerClock(offset, lambda: time.time_ns() // 1000 + 2 * offset.read_us())
    with pytest.raises(ClockDidNotMove, match="was to move by 30 s and moved by 60"):
        twice.advance(30)


def test_a_server_without_its_offset_file_refuses_to_start() -> None:
    with EmbeddedServers.start(preload=require_preload()) as servers:
        assert servers.test.clock_offset is not None
        servers.test.stop()
        servers.test.clock_offset.path.unlink()
        with pytest.raises(UsageError, match="exit code 97") as refused:
            servers.test.restart()
        assert "fencepost clock: cannot open the file" in str(refused.value)


def test_without_a_preload_there_is_no_offset_file() -> None:
    with EmbeddedServers.start() as servers:
        assert servers.test.clock_offset is None
        assert abs(_now_us(servers.test) - time.time_ns() // 1000) < 5_000_000


def test_the_offset_file_is_shared_and_exact(tmp_path: Path) -> None:
    one = OffsetFile.create(tmp_path / "clock")
    other = OffsetFile(tmp_path / "clock")
    assert other.read_us() == 0
    one.set_us(1_234_567)
    other.add_us(-2_000_000)
    assert one.read_us() == -765_433
    one.close()
    other.close()

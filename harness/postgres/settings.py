"""What the embedded servers are configured with, and why. Nothing else sets a server parameter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUPERUSER = "postgres"
LOOPBACK = "127.0.0.1"
_PEER_MAP = "fencepost"

INITDB_ARGUMENTS = (
    "--no-sync",  # a template that a power cut spoils is built again
    "--encoding=UTF8",
    "--locale=C",  # the same order and the same messages on every machine
    "--wal-segsize=1",  # megabytes; the default of 16 would be most of what is copied for each server
    f"--username={SUPERUSER}",
    # What initdb writes is never used as it is, but a template that trusts should not exist even unused.
    "--auth-local=peer",
    "--auth-host=scram-sha-256",
)


@dataclass(frozen=True)
class ServerRole:
    """What one of the two servers of a run is for, as settings."""

    name: str
    settings: dict[str, str]


_COMMON = {
    "listen_addresses": LOOPBACK,
    "unix_socket_permissions": "0700",
    # The faults are process crashes, not power cuts: what was handed to the kernel survives them.
    "fsync": "off",
    "full_page_writes": "off",
    # Segments are files in the data directory: a SIGKILL leaves nothing behind in shared memory.
    "dynamic_shared_memory_type": "mmap",
    "huge_pages": "off",  # asking for them costs start-up time and gains nothing at this size
    # A schedule must meet the same locks, plans and processes each time; the rows are too few to need either.
    "autovacuum": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "max_wal_senders": "0",
    # By the moved clock: at the default of five minutes nearly every advance would start a checkpoint.
    "checkpoint_timeout": "1d",
    # The alarm that guards a login stays set after it, and a timer set when the clock has just leapt to its
    # end waits for it in real time (tests/test_clock_storm.py shows it). Seven seconds bound that lateness,
    # where the default is a minute, and lie beside the round numbers that leases, and so leaps, are made of.
    "authentication_timeout": "7s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "logging_collector": "off",  # the keeper sends stderr to a file in the run's directory
    "log_line_prefix": "%m [%p] %q%a ",
    "password_encryption": "scram-sha-256",
}

UNDER_TEST = ServerRole(
    "test",
    {
        # With it off, a crash loses acknowledged rows: every verdict on a crash would be about this setting.
        "synchronous_commit": "on",
        "max_connections": "100",
        "shared_buffers": "16MB",
        "deadlock_timeout": "1s",
    },
)

CONTROL = ServerRole(
    "control",
    {
        "synchronous_commit": "off",  # no fault touches it, so it never has anything to recover
        "wal_level": "minimal",
        "max_connections": "200",  # each held checkpoint is a connection here
        "shared_buffers": "2MB",
    },
)


def configuration(role: ServerRole, *, major: int, port: int, socket_dir: Path) -> str:
    """The whole `postgresql.conf`."""
    settings = {**_COMMON, **role.settings, "port": str(port), "unix_socket_directories": str(socket_dir)}
    if major >= 16:
        # Iterations slow down guessing. The password is 128 random bits, so there is nothing to slow down,
        # and each one is paid at every TCP login.
        settings["scram_iterations"] = "1"
    if major >= 18:
        settings["io_method"] = "sync"  # the default keeps three more processes per server
    return "".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items())


def container_settings(role: ServerRole) -> dict[str, str]:
    """What a server in a container is given on top of its image's: all but where it listens, and who may enter."""
    left_to_the_image = ("listen_addresses", "unix_socket_permissions", "password_encryption")
    settings = {**_COMMON, **role.settings}
    return {name: value for name, value in settings.items() if name not in left_to_the_image}


def host_based_authentication() -> str:
    """The whole `pg_hba.conf`: nobody is trusted."""
    return f"local all all peer map={_PEER_MAP}\nhost all all {LOOPBACK}/32 scram-sha-256\n"


def peer_map(*os_users: str) -> str:
    """The whole `pg_ident.conf`: these operating-system users are the superuser."""
    return "".join(f'{_PEER_MAP} "{user}" {SUPERUSER}\n' for user in dict.fromkeys(os_users))


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"

"""The plugin comes with the installed distribution as an entry point; a checkout insists on having it."""

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("fencepost"):
        raise pytest.UsageError("fencepost is not installed in this environment: run `make setup`.")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a shell script. Commands that tests end with a Ctrl-C would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""The plugin comes with the installed distribution as an entry point; a checkout insists on having it."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("fencepost"):
        raise pytest.UsageError("fencepost is not installed in this environment: run `make setup`.")

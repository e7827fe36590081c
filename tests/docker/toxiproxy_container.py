"""Stands in for the program `toxiproxy-server`: runs the one in the image, for as long as this process lives.

On the host's network, because the ports of its proxies are chosen while it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from fencepost.harness import docker_engine


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    with docker_engine.engine() as client:
        container = client.containers.create(
            docker_engine.TOXIPROXY_IMAGE,
            command=sys.argv[1:],
            network_mode="host",
            labels=docker_engine.labels(),
            environment={"LOG_LEVEL": os.environ.get("LOG_LEVEL", "info")},
            # Its configuration lies at the same place inside.
            volumes={path: {"bind": path, "mode": "ro"} for path in sys.argv[1:] if Path(path).is_file()},
        )
        try:
            container.start()
            for said in container.logs(stream=True, follow=True):
                sys.stdout.buffer.write(said)
                sys.stdout.buffer.flush()
            return int(container.wait()["StatusCode"])
        finally:
            docker_engine.remove(container)


if __name__ == "__main__":
    sys.exit(main())

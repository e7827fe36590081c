"""One Toxiproxy server's API, through toxiproxy-python, with a deadline on every call.

That library keeps the server's address in class attributes of `APIConsumer`, which its `Toxiproxy` and `Proxy`
classes all share: two servers in one process would mix, and a user's own use of the library would be redirected.
Its calls are class methods that read the address off the class they are called on, so a subclass per server has
an address of its own and leaves the shared one alone.
"""

from __future__ import annotations

from typing import Any

import requests
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

ALWAYS = 1.0
"""The toxicity of every toxic that acts. Below it the server tosses a coin, and ignores the seed it is given."""

NEVER = 0.0


class ToxiproxyApiError(Exception):
    """What the server, or the way to it, had to say, in one line."""


class ToxiproxyApi:
    def __init__(self, host: str, port: int, deadline_s: float) -> None:
        self.host = host
        self.port = port
        self._consumer: Any = type("ApiOfOneServer", (APIConsumer,), {"host": host, "port": port})
        self._deadline_s = deadline_s

    def version(self) -> str:
        return str(self._ask("get", "/version").json()["version"])

    def proxies(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._ask("get", "/proxies").json()
        return found

    def create_proxy(self, name: str, listen: str, upstream: str, *, enabled: bool = True) -> None:
        self._ask(
            "post",
            "/proxies",
            json={"name": name, "listen": listen, "upstream": upstream, "enabled": enabled},
        )

    def enable_proxy(self, name: str) -> None:
        self._ask("post", f"/proxies/{name}", json={"enabled": True})

    def disable_proxy(self, name: str) -> None:
        self._ask("post", f"/proxies/{name}", json={"enabled": False})

    def delete_proxy(self, name: str) -> None:
        self._ask("delete", f"/proxies/{name}")

    def toxics(self, proxy: str) -> list[str]:
        return [toxic["name"] for toxic in self._ask("get", f"/proxies/{proxy}/toxics").json()]

    def add_toxic(
        self,
        proxy: str,
        name: str,
        kind: str,
        stream: str,
        attributes: dict[str, int],
        *,
        toxicity: float = ALWAYS,
    ) -> None:
        """Returns once the toxic is on every live connection."""
        toxic = {
            "name": name,
            "type": kind,
            "stream": stream,
            "toxicity": toxicity,
            "attributes": attributes,
        }
        self._ask("post", f"/proxies/{proxy}/toxics", json=toxic)

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Returns once it is off every live connection: never, while one of them cannot be written to."""
        self._ask("delete", f"/proxies/{proxy}/toxics/{name}")

    def _ask(self, method: str, url: str, **sent: Any) -> requests.Response:
        call = getattr(self._consumer, method)
        try:
            # no_proxy: a proxy named in the environment is not for the loopback address.
            response: requests.Response = call(
                url, timeout=self._deadline_s, proxies={"no_proxy": self.host}, **sent
            )
        except (ProxyExists, NotFound, InvalidToxic) as problem:
            said = problem.args[0] if problem.args else problem
            raise ToxiproxyApiError(_one_line(said)) from problem
        except requests.Timeout as problem:
            raise ToxiproxyApiError(
                f"Toxiproxy on port {self.port} did not answer {method.upper()} {url} in {self._deadline_s:g} s"
            ) from problem
        except requests.RequestException as problem:
            raise ToxiproxyApiError(
                f"Toxiproxy on port {self.port} cannot be reached for {method.upper()} {url}: {problem}"
            ) from problem
        if not response.ok:  # the library looks at three codes only
            raise ToxiproxyApiError(f"{response.status_code} {_one_line(response.content)}")
        return response


def _one_line(said: object) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split())

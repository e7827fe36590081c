"""Passwords never reach a trace: connection strings in errors, arguments, SQL and payloads lose theirs.

Generous on purpose: what merely looks like a password is taken out too.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

# postgresql://user:PASSWORD@host: up to the last @ of the word, since not everybody quotes one in a password.
_IN_URL = re.compile(r"(://[^\s:/@'\"]*):[^\s'\"]*@")
# password=…, password = '…', PGPASSWORD=…, 'password': '…': a quoted value with its escapes, or the rest of the word.
_BY_NAME = re.compile(
    r"(password['\"]?\s*[=:]\s*)(?!\*\*\*)('(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^\s'\"]\S*)", re.IGNORECASE
)


def redacted_text(text: str) -> str:
    if "://" in text:
        text = _IN_URL.sub(rf"\1:{HIDDEN}@", text)
    if "password" in text.lower():
        text = _BY_NAME.sub(rf"\1{HIDDEN}", text)
    return text


def redacted(value: Any) -> Any:
    """The same JSON value with every text in it redacted, keys too."""
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, dict):
        return {redacted_text(key): redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value

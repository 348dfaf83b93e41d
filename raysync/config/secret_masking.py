"""Mask the secrets in URIs, for everything that is written and printed.

s3://KEY:SECRET@bucket/runs?token=SECRET&region=eu-1 -> s3://***@bucket/runs?token=***&region=eu-1
"""

from __future__ import annotations

import re

HARMLESS = {"endpoint_override", "region", "scheme"}
"""Names in a URI's query whose values are shown. All others are masked: only the file system knows
which of them are secrets."""
MASK = "***"

_URI = re.compile(r"(?P<scheme>\w[\w+.-]*://)(?P<path>[^\s?]*)(?P<query>\?\S*)?")
_LOGIN = re.compile(r"^[^/@]*:(?!\d+(?:/|$)).*@")
"""user:password@ in front of a host; a password can contain a slash. HOST:PORT/ is left alone."""
_PUNCTUATION = re.compile(r"['\"),.;:\]}]*$")
"""The punctuation of a sentence behind a URI."""


def masked(text: str) -> str:
    """Return a text in which the passwords and the queries of URIs are masked."""
    return _URI.sub(_masked_uri, text) if "://" in text else text


def _masked_uri(uri: re.Match[str]) -> str:
    query = (uri["query"] or "").removeprefix("?")
    pairs = f"?{'&'.join(map(_masked_pair, query.split('&')))}" if query else uri["query"] or ""
    return uri["scheme"] + _LOGIN.sub(f"{MASK}@", uri["path"], count=1) + pairs


def _masked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not pair or (equals and name in HARMLESS):
        return pair
    behind = _PUNCTUATION.search(value or name)
    assert behind is not None, "the pattern matches an empty end"
    return f"{name if equals else ''}{equals}{MASK}{behind[0]}"

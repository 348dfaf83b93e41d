"""Mask the secrets in URIs, for everything that is written and printed.

s3://KEY:SECRET@bucket/runs?token=SECRET&region=eu-1 -> s3://***@bucket/runs?token=***&region=eu-1
"""

from __future__ import annotations

import re

# query names whose values may be written; only the file system knows which others are secrets
HARMLESS = {"endpoint_override", "region", "scheme"}
MASK = "***"

_URI = re.compile(r"(?P<scheme>\w[\w+.-]*://)(?P<path>[^\s?]*)(?P<query>\?\S*)?")
_LOGIN = re.compile(
    r"""^[^/@]*:        # the user
        (?!\d+(?:/|$))  # not HOST:PORT/, which is left alone
        .*@             # the password, which can contain a slash, up to the last @
    """,
    re.VERBOSE,
)
_PUNCTUATION = re.compile(r"['\"),.;:\]}]*$")  # the punctuation of a sentence after a URI


def masked(text: str) -> str:
    """Mask the passwords and the queries of all URIs in a text."""
    return _URI.sub(_masked_uri, text) if "://" in text else text


def _masked_uri(uri: re.Match[str]) -> str:
    path = _LOGIN.sub(f"{MASK}@", uri["path"], count=1)
    mark, pairs = (uri["query"] or "")[:1], (uri["query"] or "")[1:]
    query = "&".join(map(_masked_pair, pairs.split("&")))
    return f"{uri['scheme']}{path}{mark}{query}"


def _masked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not pair or (equals and name in HARMLESS):
        return pair
    punctuation = _PUNCTUATION.search(value or name)
    assert punctuation is not None, "the pattern matches an empty end"
    return f"{name if equals else ''}{equals}{MASK}{punctuation[0]}"

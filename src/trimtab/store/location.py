"""Where an object store is: a URL that names no user and no password."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
HINT = "write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or file:///DIRECTORY"


def checked(url: str) -> str:
    """The URL, without a slash at its end.

    Raises:
        ValueError: it is no such URL; the message does not repeat it.

    >>> checked("s3://bucket/runs/a/")
    's3://bucket/runs/a'
    >>> checked("s3://key" + ":word@bucket/runs/a")
    Traceback (most recent call last):
        ...
    ValueError: has a user or a password in it; give them in the environment, such as AWS_ACCESS_KEY_ID
    """
    scheme, found, rest = url.partition("://")
    if not found or not SCHEME.fullmatch(scheme) or "::" in url:
        raise ValueError(f"expected the URL of an object store: {HINT}")
    if "@" in rest.partition("/")[0]:
        raise ValueError("has a user or a password in it; give them in the environment, such as AWS_ACCESS_KEY_ID")
    if urlsplit(url).query or "#" in url:
        raise ValueError(f"expected a URL without query and fragment: {HINT}")
    if not rest.strip("/"):
        raise ValueError(f"names no place: {HINT}")
    if ".." in rest.split("/"):
        raise ValueError("has `..` in it; write where it leads to")
    return url.rstrip("/")


def scheme_of(url: str) -> str:
    """
    >>> scheme_of("gs://bucket/a")
    'gs'
    """
    return url.partition("://")[0]


class _Checked:
    """What pydantic does with a text that is to be a location."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(checked, handler(source))


Location = Annotated[str, _Checked()]

"""The `observe` section's part that is about who else is told: trackers and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen

from trimtab.secrets import Secret
from trimtab.types import STRICT

Format = Literal["json", "slack", "dingtalk", "feishu", "wecom"]
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio", "swanlab"]
Kind = Literal[
    "alarm",
    "warning",
    "cleared",
    "rollback",
    "swap",
    "save_failed",
    "stop",
    "failed",
    "preempted",
    "finished",
    "started",
    "resumed",
]
"""What a webhook can be told of."""


class OneOrMore:
    """In a field's type, before a tuple: one entry stands for a list of one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: [value] if isinstance(value, Mapping | str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An address that is told of what happens to a run."""

    __pydantic_config__ = STRICT

    url: Secret
    """Where it is: `${env:NAME}` or `${file:PATH}`. Whoever has the address can write there, so it is a secret itself."""
    format: Format = "json"
    """Whose language it speaks: Trimtab's own document, or Slack's, DingTalk's, Feishu's (Lark's), WeCom's."""
    secret: Secret | None = None
    """Where the key is that messages are signed with (dingtalk, feishu, json): `${env:NAME}` or `${file:PATH}`."""
    on: Annotated[tuple[Kind, ...], OneOrMore(), MinLen(1)] = (
        "alarm",
        "warning",
        "rollback",
        "save_failed",
        "stop",
        "failed",
        "preempted",
        "finished",
    )
    """What it is told of."""
    timeout_seconds: Annotated[float, Gt(0), Le(60)] = 10.0
    """What one attempt to send may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """The `observe` section's part that is about other systems."""

    __pydantic_config__ = STRICT

    trackers: Annotated[tuple[Tracker, ...], OneOrMore()] = ()
    """Experiment trackers that get the figures too, each an extra of the same name: `[tensorboard, wandb]`."""
    webhook: Annotated[tuple[Webhook, ...], OneOrMore()] | None = None
    """Addresses that are told of alarms, rollbacks and how the run ends: `{url: "${env:HOOK}", format: slack}`, or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The `observe` section's part that is about Prometheus."""

    __pydantic_config__ = STRICT

    prometheus_port: Annotated[int, Ge(0), Le(65535)] | None = None
    """Where `/metrics`, `/healthz` and `/readyz` are answered, such as 9464; 0 takes a free port; null: nowhere."""
    prometheus_address: str = "127.0.0.1"
    """Of the computer; any other than loopback (0.0.0.0 in a container) needs `prometheus_token`."""
    prometheus_token: Secret | None = None
    """Where the token is that a scrape must bring along: `${env:NAME}` or `${file:PATH}`."""
    prometheus_textfile: str | None = None
    """A file that gets the figures every few seconds and at the end, for a node exporter's textfile collector: `run.prom`."""


def is_loopback(address: str) -> bool:
    """Whether only this computer can reach it.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False

"""Renders a conversation by the model's own Jinja template, with what such templates expect to find."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from spearhead.errors import CheckpointError, InvalidRequest

FIELD = "chat.messages"
Message = Mapping[str, str]

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_COMMON_ROLES = frozenset({"system", "user", "assistant"})
_PROBE = "c0ntent-pr0be"


class ChatTemplate:
    """One model's template.

    Args:
        source: Jinja source.
        named_tokens: ``bos_token`` and so on, as variables for the template.

    Raises:
        CheckpointError: The source is not valid Jinja.
    """

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the model's chat template is not valid: {error}") from error
        self._named_tokens = dict(named_tokens)
        self._role_known = lru_cache(maxsize=64)(self._probe_role)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The conversation as one text.

        Args:
            messages: ``role`` and ``content`` each, at least one.
            add_generation_prompt: End with the opening of the assistant's turn.

        Raises:
            InvalidRequest: No message, a role that the template does not know, or the template refuses.
        """
        if not messages:
            raise InvalidRequest("the conversation is empty; send at least one message", field=FIELD)
        for role in {message["role"] for message in messages} - _COMMON_ROLES:
            if not _ROLE.fullmatch(role) or not self._role_known(role):
                raise InvalidRequest(
                    f"role {role[:80]!r} is unknown to the model's chat template; "
                    "use system, user or assistant",
                    field=FIELD,
                )
        try:
            return self._render(messages, add_generation_prompt)
        except Exception as error:  # A template is a program; whatever it trips over is the input's fault.
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", field=FIELD
            ) from error

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        return self._template.render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._named_tokens,
        )

    def _probe_role(self, role: str) -> bool:
        """Whether a message of this role shows in the text; many templates drop what they do not know."""
        probe = {"role": role, "content": _PROBE}
        user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        for messages in ([probe], [user, probe], [user, assistant, probe]):
            try:
                if _PROBE in self._render(messages, False):
                    return True
            except Exception:  # The template wants another order; try the next.
                continue
        return False


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it only passes it on."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )

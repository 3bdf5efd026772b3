"""Chats as text: a tokenizer's own template makes it of messages, in a sandbox, and the answers in it are found.

An answer is what the template adds to a conversation when the message of the role `assistant` comes to it, after
what it writes to ask for one.
"""

import json
from collections.abc import Mapping
from typing import NoReturn

from jzero.base.files import why
from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.train.data.tokenizer import Tokenizer, optional_package


class ChatTemplate:
    """The chat template of a tokenizer; it can read no file and run no code.

    Args:
        tokenizer: has the template and the special tokens that it writes.

    Raises:
        ConfigError: there is none, or it is no template.
    """

    def __init__(self, tokenizer: Tokenizer):
        jinja = optional_package("jinja2", "a chat template")
        sandbox = optional_package("jinja2.sandbox", "a chat template")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._error: type[Exception] = jinja.TemplateError
        self._special = dict(tokenizer.special)
        try:
            self._template = environment.from_string(tokenizer.chat_template)
        except self._error as error:
            raise ConfigError(f"the chat template of {tokenizer.path.parent} is none: {why(error)}.") from None

    def text(self, messages: list[Mapping[str, Json]], *, ask: bool = False) -> str:
        """The text of some messages; `ask` adds what asks for an answer.

        Raises:
            ConfigError: the template refuses them.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=ask, **self._special)
        except (self._error, TypeError, ValueError, RecursionError, OverflowError, ZeroDivisionError) as error:
            raise ConfigError(f"the chat template does not take these messages: {why(error)}.") from None

    def parts(self, messages: list[Mapping[str, Json]]) -> list[tuple[str, bool]]:
        """The text of a chat in parts, each with whether it is an answer.

        Raises:
            ConfigError: there is no answer, or it cannot be told where one is.
        """
        whole, parts, at = self.text(messages), list[tuple[str, bool]](), 0
        for number, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before, after = self.text(messages[:number], ask=True), self.text(messages[: number + 1])
            if len(before) < at or not whole.startswith(after) or not after.startswith(before):
                raise ConfigError(
                    f"what the chat template makes of message {number + 1} changes with the messages after it, so that "
                    "the answer in it is not found; give one answer a record."
                )
            parts += [(whole[at : len(before)], False), (whole[len(before) : len(after)], True)]
            at = len(after)
        if not parts:
            raise ConfigError("`messages` has no message of the role 'assistant', which would be the answer.")
        parts.append((whole[at:], False))
        return [(text, counted) for text, counted in parts if text]


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _to_json(value: Json, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)

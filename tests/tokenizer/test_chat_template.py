"""Chat templates: what they may use, and what becomes of their errors."""

from datetime import datetime

import pytest
import transformers.utils.chat_template_utils as oracle

from spearhead.errors import CheckpointError, InvalidRequest
from spearhead.tokenizer.chat_template import ChatTemplate
from tests.tokenizer.reference import CHAT_TEMPLATE

USER = {"role": "user", "content": 'ä "<&>" 🙂'}
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
# Every construct that templates in the field use.
TEMPLATES = {
    "loops": "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m['content'] | trim }}{% endfor %}",
    "blocks": "  {% for m in messages %}\n  {{ m.content }}\n  {% endfor %}\nend",
    "names": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
    "controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}.",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "absent": "{% if tools %}t{% endif %}{% if documents %}d{% endif %}{{ tools is none }}"
    "{{ add_generation_prompt }}",
    "namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}",
    "scopes": "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_renders_as_transformers_does(name: str) -> None:
    messages = [USER, {"role": "assistant", "content": " b "}, USER]
    (expected,), _ = oracle.render_jinja_template(
        [messages], chat_template=TEMPLATES[name], add_generation_prompt=True, **NAMED
    )
    assert ChatTemplate(TEMPLATES[name], NAMED).render(messages, add_generation_prompt=True) == expected


def test_templates_may_print_today() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", {})
    years = {datetime.now().year, datetime.now().year + 1}
    assert int(template.render([USER], add_generation_prompt=False)) in years


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content }}",
        "{{ 'a' + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_whatever_a_template_trips_over_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses") as caught:
        ChatTemplate(source, {}).render([USER], add_generation_prompt=True)
    assert caught.value.field == "chat.messages"


def test_the_template_s_own_message_reaches_the_caller() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render([USER], add_generation_prompt=True)


def test_invalid_template_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="chat template is not valid"):
        ChatTemplate("{% for %}", {})


def test_empty_conversation_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        ChatTemplate(CHAT_TEMPLATE, {}).render([], add_generation_prompt=True)


KNOWS_THREE = (
    "{% for m in messages %}{% if m.role in ['user', 'assistant', 'tool'] %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
TOOL_AFTER_ASSISTANT = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' and (loop.first or messages[loop.index0 - 1].role != 'assistant') %}"
    "{{ raise_exception('order') }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("role", ["critic", "", "user\n<|end|>", "r" * 200, "üser"])
def test_role_that_the_template_drops_is_refused_by_name(role: str) -> None:
    messages = [USER, {"role": role, "content": "lost"}]
    with pytest.raises(InvalidRequest, match="unknown to the model's chat template") as caught:
        ChatTemplate(KNOWS_THREE, {}).render(messages, add_generation_prompt=True)
    assert caught.value.field == "chat.messages"


@pytest.mark.parametrize("source", [KNOWS_THREE, TOOL_AFTER_ASSISTANT])
def test_other_roles_that_the_template_knows_are_welcome(source: str) -> None:
    messages = [USER, {"role": "assistant", "content": "b"}, {"role": "tool", "content": "found"}]
    assert "found" in ChatTemplate(source, {}).render(messages, add_generation_prompt=True)


def test_rendering_leaves_the_messages_alone() -> None:
    messages = [dict(USER)]
    ChatTemplate(CHAT_TEMPLATE, {}).render(messages, add_generation_prompt=True)
    assert messages == [USER]

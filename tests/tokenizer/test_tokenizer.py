"""The tokenizer against transformers, with the embedded model and the small one."""

from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from spearhead.errors import InvalidRequest
from spearhead.tokenizer import Tokenizer
from tests.tokenizer.reference import (
    REFERENCE_PRE_TOKENIZERS,
    UNICODE_CORPUS,
    train_reference,
    write_reference_folder,
)

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.

CONVERSATIONS = (
    [{"role": "user", "content": "What is 2+2?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 🙂"}],
    [
        {"role": "user", "content": "a\n\n b "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "<b>&\"'</b>"},
    ],
)


@pytest.fixture(scope="module")
def oracle(embedded_path: Path) -> transformers.PreTrainedTokenizerBase:
    loaded = transformers.AutoTokenizer.from_pretrained(embedded_path.parent, gguf_file=embedded_path.name)
    # transformers cuts words as GPT-2 does whatever the file names; the model's published tokenizer.json
    # cuts at each digit first, which shows at digits beyond ASCII.
    loaded.backend_tokenizer.pre_tokenizer = REFERENCE_PRE_TOKENIZERS["smollm"]()
    return loaded


@pytest.mark.model
@pytest.mark.parametrize("text", UNICODE_CORPUS)
def test_embedded_model_gets_the_ids_of_transformers(
    embedded: Tokenizer, oracle: transformers.PreTrainedTokenizerBase, text: str
) -> None:
    assert embedded.encode(text) == oracle(text)["input_ids"]
    assert (
        embedded.encode(text, add_special_tokens=False) == oracle(text, add_special_tokens=False)["input_ids"]
    )


@pytest.mark.model
def test_special_tokens_in_text_get_the_ids_of_transformers(
    embedded: Tokenizer, oracle: transformers.PreTrainedTokenizerBase
) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name>x<|im_start|"
    assert embedded.encode(text) == oracle(text)["input_ids"]


@pytest.mark.model
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("prompted", [True, False])
def test_chat_renders_as_in_transformers(
    embedded: Tokenizer,
    oracle: transformers.PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    prompted: bool,
) -> None:
    text = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
    assert embedded.apply_chat_template(messages, prompted) == text
    ids = oracle.apply_chat_template(messages, add_generation_prompt=prompted, return_dict=False)
    assert embedded.encode_chat(messages, prompted) == ids


@pytest.mark.model
def test_transformers_reads_the_embedded_model_s_saved_folder_alike(
    embedded: Tokenizer, tmp_path: Path
) -> None:
    embedded.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs(text)["input_ids"] for text in UNICODE_CORPUS] == [
        embedded.encode(t) for t in UNICODE_CORPUS
    ]
    assert (theirs.bos_token_id, theirs.eos_token_id) == (embedded.bos_token_id, *embedded.eos_token_ids)
    assert Tokenizer.load(tmp_path).hash == embedded.hash


@pytest.mark.parametrize("text", UNICODE_CORPUS)
def test_text_survives_encoding_and_decoding(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text)) == text


def test_decoding_leaves_special_tokens_out_unless_asked(small: Tokenizer) -> None:
    ids = small.encode("<|start|>hi<|end|><tool>")
    assert small.decode(ids) == "hi<tool>"
    assert small.decode(ids, skip_special_tokens=False) == "<|start|>hi<|end|><tool>"


def test_ids_beyond_the_vocabulary_decode_to_nothing(small: Tokenizer) -> None:
    assert small.decode([*small.encode("hi"), small.vocab_size, small.vocab_size + 10**6]) == "hi"


@pytest.mark.parametrize("text", ["a\ud800b", "\udc00", "x\udfff\ud800y"])
def test_lone_surrogates_count_as_replacement_characters(small: Tokenizer, text: str) -> None:
    decoded = small.decode(small.encode(text))
    assert "\ufffd" in decoded
    assert decoded.replace("\ufffd", "") == "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)


def test_paired_surrogates_are_their_character(small: Tokenizer) -> None:
    assert small.encode("\ud83d\ude42") == small.encode("🙂")


def test_model_without_template_says_what_to_send_instead(tmp_path: Path) -> None:
    folder = write_reference_folder(tmp_path, train_reference("gpt-2"))
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match=r"no chat template.*`prompt`") as caught:
        Tokenizer.load(folder).encode_chat([{"role": "user", "content": "x"}])
    assert caught.value.field == "chat.messages"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("lasting")
    return Tokenizer.load(write_reference_folder(folder, train_reference("smollm")))


@UNTIMED
@given(text=st.text(max_size=40))
def test_any_text_survives(lasting: Tokenizer, text: str) -> None:
    assert lasting.decode(lasting.encode(text), skip_special_tokens=False) == text

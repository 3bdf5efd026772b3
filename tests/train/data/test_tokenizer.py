"""Tokenizers as files, and chats as text."""

import json

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from jzero.errors import ConfigError
from jzero.train.data.chat import ChatTemplate
from jzero.train.data.tokenizer import Tokenizer
from tests.train.data.bpe import EOS, library, save_tokenizer


def test_the_ids_are_the_library_s(tmp_path):
    tokenizer = Tokenizer(save_tokenizer(tmp_path))
    texts = ["def f(x):\n    return x", "", "größe"]
    assert [ids.tolist() for ids in tokenizer.encode(texts)] == [library().encode(text).ids for text in texts]
    assert (tokenizer.vocab_size, tokenizer.eos) == (400, library().token_to_id(EOS))
    assert not tokenizer.marks_beginnings


def test_a_file_s_padding_and_truncation_are_not_followed(tmp_path):
    path = save_tokenizer(tmp_path) / "tokenizer.json"
    short = Library.from_file(str(path))
    short.enable_truncation(3)
    short.enable_padding(length=8)
    short.save(str(path))
    assert len(Tokenizer(tmp_path).encode(["a longer text than that"])[0]) > 3
    assert len(Tokenizer(tmp_path).encode(["a"])[0]) == 1


def test_the_hash_tells_tokenizers_apart(tmp_path):
    one, two = save_tokenizer(tmp_path / "one"), save_tokenizer(tmp_path / "two")
    assert Tokenizer(one).sha256 == Tokenizer(two / "tokenizer.json").sha256
    (two / "tokenizer.json").write_text((one / "tokenizer.json").read_text().replace(EOS, "<|endoftest|>"))
    (two / "tokenizer_config.json").unlink()
    assert Tokenizer(one).sha256 != Tokenizer(two, eos="<|endoftest|>").sha256


def test_the_end_of_a_text_is_given_named_or_usual(tmp_path):
    folder = save_tokenizer(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer(folder).eos == Tokenizer(folder, eos=EOS).eos
    assert Tokenizer(folder, eos="a").eos == library().token_to_id("a")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "b", "lstrip": False}}))
    assert Tokenizer(folder).eos == library().token_to_id("b")
    with pytest.raises(ConfigError, match="has no token 'none of it', which is to end a text"):
        Tokenizer(folder, eos="none of it")
    plain = Library(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    plain.save(str(tmp_path / "plain.json"))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match="does not say which token ends a text; name it by --eos"):
        Tokenizer(tmp_path / "plain.json")


def test_a_mark_at_each_beginning_is_found(tmp_path):
    marked = Library.from_str(library().to_str())
    marked.normalizer = normalizers.Prepend("_")
    marked.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marked.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).marks_beginnings


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), ("{}", "is no tokenizer.json that tokenizers"), ("no", "is no tokenizer.json that")],
)
def test_what_is_no_tokenizer_is_a_sentence(tmp_path, content, says):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=says):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ConfigError, match="has a SentencePiece model only"):
        Tokenizer(tmp_path)


CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "!"},
]


def test_the_answers_of_a_chat_count(tmp_path):
    template = ChatTemplate(Tokenizer(save_tokenizer(tmp_path)))
    assert template.parts(CHAT) == [
        ("<|user|>hi<|assistant|>", False),
        (f"hello{EOS}", True),
        ("<|user|>?<|assistant|>", False),
        (f"!{EOS}", True),
    ]
    assert template.parts([*CHAT, CHAT[0]])[-1] == ("<|user|>hi", False)
    with pytest.raises(ConfigError, match="has no message of the role 'assistant'"):
        template.parts(CHAT[:1])


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for %}", "is none: "),
        ("{{ raise_exception('no system, please') }}", "does not take these messages: no system, please"),
        (
            "{{ messages[0].content.__class__.__mro__ }}",
            "does not take these messages: access to attribute",
        ),
        ("{{ messages.append(1) }}", "does not take these messages: "),
        ("{{ messages[-1].content }}", "changes with the messages after it"),
        ("", "has no chat template"),
    ],
)
def test_a_template_that_is_none_or_hostile_is_a_sentence(tmp_path, template, says):
    with pytest.raises(ConfigError, match=says):
        ChatTemplate(Tokenizer(save_tokenizer(tmp_path, template))).parts(CHAT)


def test_a_template_of_its_own_file_comes_first(tmp_path):
    folder = save_tokenizer(tmp_path)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert ChatTemplate(Tokenizer(folder)).text(CHAT[:2]) == "[hi][hello]"

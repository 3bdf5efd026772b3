"""Files that are no configurations, or made to keep a reader busy: a sentence, and nothing is waited for or run."""

import os

import pytest

from jzero.config import Config, load_run
from jzero.errors import ConfigError

NINE = ",".join
BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(f"a{i}: &a{i} [{NINE([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{NINE([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9))


def message(path):
    with pytest.raises(ConfigError) as error:
        Config.load(path)
    assert str(error.value).startswith(f"{path}: ")
    with pytest.raises(ConfigError):
        load_run(path)
    return str(error.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["ds.json", "ds.yaml"])
def test_what_is_no_file_is_not_waited_for(tmp_path, name):
    for make, kind in (
        (lambda: os.mkfifo(tmp_path / name), "named pipe"),
        (lambda: (tmp_path / name).symlink_to("/dev/zero"), "device"),
        ((tmp_path / name).mkdir, "folder"),
    ):
        make()
        assert message(tmp_path / name) == f"cannot read the file: it is a {kind}, not a file"
        (tmp_path / name).rmdir() if kind == "folder" else (tmp_path / name).unlink()


def test_an_accelerate_file_cannot_lead_to_one_either(tmp_path):
    file = tmp_path / "accelerate.yaml"
    for path, says in (
        ("/dev/zero", "/dev/zero: cannot read the file: it is a device, not a file"),
        ("n" * 5000, "cannot read the file: File name too long"),
        (r"a\0b", "cannot read the file: its name has a NUL in it"),
    ):
        file.write_text(f'deepspeed_config: {{deepspeed_config_file: "{path}"}}\n')
        with pytest.raises(ConfigError) as error:
            Config.load(file)
        assert str(error.value).endswith(says)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ds.json", '{"a": "' + "x" * 2**21 + '"}', "cannot read the file: it is longer than the 1.05 MB that such a "),
        ("ds.json", '{"a":' * 10**5 + "1" + "}" * 10**5, "not a configuration: objects lie too deep in each other"),
        ("ds.json", '{"a":' * 200 + "1" + "}" * 200, "not a configuration: objects lie too deep in each other"),
        ("ds.json", "{\n# c\na:" + "[" * 3000, "not a configuration: objects lie too deep in each other"),
        ("ds.json", '{"a": ' + "9" * 10**5 + "}", "not a configuration: a number has thousands of digits"),
        ("ds.json", "{" + '"k": 1,' * 20_000 + '"k": 2}', "`k` is there twice; keep one"),
        ("ds.yaml", BOMB + "train_batch_size: 16\n", "not valid YAML: it stands for more than 50,000 values and keys"),
        ("ds.yaml", BOMB + "deepspeed_config: {}\n", "not valid YAML: it stands for more than 50,000 values and keys"),
        ("ds.yaml", MERGES, "not valid YAML: it stands for more than 50,000 values and keys"),
        ("ds.yaml", "a: " + "x " * 2**17, "not valid YAML: it is longer than 131,072 characters"),
        ("ds.yaml", "a: " + "[" * 10**4, "not valid YAML: lists and mappings lie too deep in each other"),
        ("ds.yaml", "a: " + "[" * 150 + "]" * 150, "not valid YAML: lists and mappings lie too deep in each other"),
        ("ds.yaml", "a: 0x" + "f" * 10**5, "not valid YAML: a number has thousands of digits"),
        ("ds.yaml", "a: " + "1:" * 6 * 10**4 + "1", "not valid YAML: a number has thousands of digits"),
        (
            "ds.yaml",
            "".join(f"k{i}: 1\n" for i in range(9000)) + "k1: 2\n",
            "not valid YAML at line 9001, column 1: `k1",
        ),
    ],
)
def test_what_would_keep_a_reader_busy_is_a_sentence(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    assert message(tmp_path / name).startswith(says)


def test_no_code_of_a_yaml_file_is_run(tmp_path):
    file, ran = tmp_path / "ds.yaml", tmp_path / "ran"
    for tag in ("python/object/apply:os.mkdir", "python/object/new:os.mkdir", "python/name:os.mkdir"):
        file.write_text(f"a: !!{tag} ['{ran}']\n")
        assert "could not determine a constructor for the tag" in message(file)
    assert not ran.exists()


def test_lines_may_end_as_on_other_systems(tmp_path):
    (tmp_path / "ds.json").write_bytes(b'\xef\xbb\xbf{\r\n# c\r\n"train_batch_size": 16,\r\n}')
    assert Config.load(tmp_path / "ds.json").train_batch_size == 16

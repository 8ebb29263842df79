"""Credentials come from code, a private file or the environment, and are never shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kourou import ProducerConfig
from kourou.auth.credentials import FILE_BYTES_MAX, Credentials
from kourou.errors import ConfigError, CredentialsError

SECRET = "s3cr3t-key"  # noqa: S105 - of a test
TOKEN = "t0ken"  # noqa: S105 - likewise


def write_file(directory: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = directory / "credentials"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def test_text_forms_show_the_access_key_only() -> None:
    credentials = Credentials("alice", SECRET, TOKEN)
    config = ProducerConfig(credentials=credentials)
    for text in (repr(credentials), str(credentials), f"{credentials}", repr(config)):
        assert "alice" in text
        assert SECRET not in text
        assert TOKEN not in text


def test_credentials_are_equal_by_value_and_survive_pickle() -> None:
    credentials = Credentials("alice", SECRET, TOKEN)
    assert pickle.loads(pickle.dumps(credentials)) == credentials  # noqa: S301
    assert credentials != Credentials("alice", SECRET)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("", SECRET), "access_key is blank"),
        (("alice", " "), "secret_key is blank"),
        (("alice", SECRET, ""), "security_token is blank"),
        (("alice", None), "secret_key must be a str, not NoneType"),
        (("alice", SECRET.encode()), "secret_key must be a str, not bytes"),
        (("alice", SECRET + "\ud800"), "secret_key is not valid Unicode"),
        (("alice", SECRET * 2_000), "secret_key has 20000 bytes: at most 16384"),
    ],
)
def test_invalid_values_are_refused_without_showing_them(
    arguments: tuple[str, ...], text: str
) -> None:
    with pytest.raises(CredentialsError, match=text) as raised:
        Credentials(*arguments)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("given", [("alice", SECRET), f"alice:{SECRET}", {"alice": SECRET}])
def test_config_refuses_other_types_without_showing_the_value(given: object) -> None:
    with pytest.raises(ConfigError, match=r"credentials is a \w+: pass Credentials") as raised:
        ProducerConfig(credentials=given)  # type: ignore[arg-type]
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        f"accessKey: alice\nsecretKey: {SECRET}\nsecurityToken: {TOKEN}\n",
        f"access_key={SECRET[:0]}alice\r\nsecret_key = {SECRET}\r\nsecurity_token={TOKEN}",
        f"---\n# mine\n\naccessKey : 'alice'\nsecretKey: \"{SECRET}\"\nsecurityToken: {TOKEN}",
    ],
    ids=["yaml", "properties", "quoted"],
)
def test_file_is_read(tmp_path: Path, text: str) -> None:
    path = write_file(tmp_path, text)
    assert Credentials.from_file(path) == Credentials("alice", SECRET, TOKEN)
    assert Credentials.from_file(str(path)) == Credentials("alice", SECRET, TOKEN)


def test_value_may_contain_the_separators(tmp_path: Path) -> None:
    path = write_file(tmp_path, "accessKey: a=b\nsecretKey=x:y==#z\\n\n")
    assert Credentials.from_file(path) == Credentials("a=b", "x:y==#z\\n")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610, 0o644, 0o777])
def test_file_accessible_to_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_file(tmp_path, f"accessKey: alice\nsecretKey: {SECRET}", mode)
    with pytest.raises(CredentialsError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        Credentials.from_file(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_file_accessible_to_its_owner_only_is_read(tmp_path: Path, mode: int) -> None:
    path = write_file(tmp_path, f"accessKey: alice\nsecretKey: {SECRET}", mode)
    assert Credentials.from_file(path).access_key == "alice"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "accessKey is missing"),
        ("accessKey: alice", "secretKey is missing"),
        (f"accessKey: alice\nsecretKey: {SECRET}\nsecretKey: {SECRET}", "line 3 repeats a key"),
        (f"accessKey: alice\nsecret: {SECRET}", "line 2 has none of the expected keys"),
        (f"alice {SECRET}", "line 1 has none of the expected keys"),
        ("accessKey: alice\nsecretKey:", "secret_key is blank"),
        (b"accessKey: \xff\n", "not UTF-8 at byte 11"),
        ("#" * (FILE_BYTES_MAX + 1), "larger than 65536 bytes"),
    ],
)
def test_invalid_file_is_named_without_showing_its_content(
    tmp_path: Path, text: str | bytes, error: str
) -> None:
    path = write_file(tmp_path, text)
    with pytest.raises(CredentialsError, match=error) as raised:
        Credentials.from_file(path)
    assert str(path) in str(raised.value)
    assert SECRET not in str(raised.value)


def test_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    keys = f"accessKey: alice\nsecretKey: {SECRET}\n"
    path = write_file(tmp_path, keys + "#" * (FILE_BYTES_MAX - len(keys)))
    assert Credentials.from_file(path) == Credentials("alice", SECRET)


def test_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="absent: No such file"):
        Credentials.from_file(tmp_path / "absent")


def test_environment_names_keys_or_a_file_or_neither(tmp_path: Path) -> None:
    keys = {"KOUROU_ACCESS_KEY": "alice", "KOUROU_SECRET_KEY": SECRET}
    assert Credentials.from_environment({}) is None
    assert Credentials.from_environment({"KOUROU_ACCESS_KEY": " "}) is None
    assert Credentials.from_environment(keys) == Credentials("alice", SECRET)
    with_token = keys | {"KOUROU_SECURITY_TOKEN": TOKEN}
    assert Credentials.from_environment(with_token) == Credentials("alice", SECRET, TOKEN)
    path = write_file(tmp_path, f"accessKey: bob\nsecretKey: {SECRET}")
    from_file = Credentials.from_environment({"KOUROU_CREDENTIALS_FILE": str(path)})
    assert from_file == Credentials("bob", SECRET)
    with pytest.raises(CredentialsError, match="unset one of them"):
        Credentials.from_environment(keys | {"KOUROU_CREDENTIALS_FILE": str(path)})


@pytest.mark.parametrize("given", ["KOUROU_ACCESS_KEY", "KOUROU_SECRET_KEY"])
def test_environment_with_one_key_is_refused(given: str) -> None:
    missing = {"KOUROU_ACCESS_KEY", "KOUROU_SECRET_KEY"} - {given}
    with pytest.raises(CredentialsError, match=f"{missing.pop()} is missing") as raised:
        Credentials.from_environment({given: SECRET})
    assert SECRET not in str(raised.value)


def test_error_names_the_variable_that_named_the_file(tmp_path: Path) -> None:
    absent = {"KOUROU_CREDENTIALS_FILE": str(tmp_path / "absent")}
    with pytest.raises(CredentialsError, match=r"KOUROU_CREDENTIALS_FILE=.*absent: No such file"):
        Credentials.from_environment(absent)

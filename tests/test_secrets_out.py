"""Secrets that are known by their form or their name are left out of texts; other words stay."""

from __future__ import annotations

import pytest

from hpc_elastic.secrets_out import (
    is_secret_name,
    secret_values,
    without_secret_words,
    without_secrets,
    without_values,
)
from hpc_elastic.text import visible, visible_lines
from tests.report.secrets_planted import PLANTED


@pytest.mark.parametrize("secret", PLANTED, ids=[each.text[:18] for each in PLANTED])
def test_a_secret_is_left_out_wherever_it_stands(secret: tuple[str, str]) -> None:
    """At the begin, inside of a line, and in lines for a terminal."""
    text, value = secret
    assert value in text
    for words in (text, f"rank 3: failed at {text}, then {text}\nsecond line {text}"):
        for shown in (without_secrets(words), visible(words), visible_lines(words)):
            assert value not in shown
            assert "***" in shown
            assert words.startswith("rank") == ("second line" in shown)


@pytest.mark.parametrize(
    "text",
    [
        "TOKENIZERS_PARALLELISM=false",
        "--max-tokens 4096",
        "key=3",
        "KeyError: 'key'",
        "missing key: foo",
        "a basic understanding of the bearer of news",
        "TOKEN=$(cat file)",
        'export HF_TOKEN="$SAVED"',
        "risk-of-something-very-long-indeed",
        "--use-auth-token --lr 3",
        "https://host:8080/path",
        "https://host/a:b@c",
        "PWD=/home/alice OLDPWD=/tmp",
        "round 3: 4 workers on n1, n2; master n1:29500, newest checkpoint: step 44",
        "hpc-elastic submit --resume /scratch/alice/hpc_elastic_runs/train-20261128-101010-ab12",
        "passwords are not shown",
        "--password-file /x/y does not exist; WANDB_API_KEY_FILE=/x/y SECRET_DIR=/a HF_TOKEN_PATH=/b",
        "basic pre-training, Basic train.py",
        "--key-padding left --token-dropout adaptive --checkpoint-key state_dict",
        "max_tokens=2k num_tokens=1_000_000_000 tokens=12345678901 tokens=3e9",
        "sort_key=loss monitor_key=val_loss primary_key=id --eos-token eos --pad-token '<pad>'",
        "{'key': 'layer1.weight'}",
        "invalid credentials: the server has refused them",
        "wrong password: try again; token: 12345; max_tokens: 4096; sort_key: loss_1234567",
        "https://discord.com/channels/1/2, https://api.telegram.org/file",
        "unexpected key=module.layer1.weight_12",
        "hpc-elastic submit --resume /scratch/alice/key=value/sk-learn-experiments-2024",
    ],
)
def test_other_words_stay(text: str) -> None:
    """Names that only resemble those of secrets, references to variables, numbers and paths."""
    assert text == without_secrets(text)


def test_values_of_variables_are_left_out_by_their_names() -> None:
    """Not those that are short, numbers or paths: they stand in many other words."""
    environ = {
        "MY_SECRET": "open sesame",
        "MY_SECRET_LONG": "open sesame and more",
        "API_KEY": "12345678",
        "TOKEN": "abc",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/alice/key.json",
        "PWD": "/home/alice",
        "HOME": "/home/alice",
        "OMP_NUM_THREADS": "open sesame",
    }
    values = secret_values({**environ, "OMP_NUM_THREADS": "four"})
    assert ("open sesame and more", "open sesame") == values
    text = "it says open sesame and more in /home/alice/key.json, 12345678 abc"
    assert "it says *** in /home/alice/key.json, 12345678 abc" == without_values(text, values)


def test_the_value_behind_a_flag_is_a_word_of_its_own() -> None:
    """In a command as a list of words."""
    words = ["train.py", "--api-key", "abc", "--hub-token=abc", "--lr", "3", "--use-auth-token", "--x"]
    assert [*words[:2], "***", "--hub-token=***", *words[4:]] == without_secret_words(words)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "my-api-key", "X_CREDENTIALS"]
)
def test_names_of_secrets(name: str) -> None:
    """In any case, with any words around."""
    assert is_secret_name(name)
    assert is_secret_name(name.lower())
    assert not is_secret_name(name.replace("_", "").replace("-", "") + "IZER")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    ["key-", "a-", "'key': ", "--key ", "eyJ", "://a:", "KEY='", "bearer a", "sk-", "key: ", "a-key: b"],
)
def test_a_long_line_takes_no_longer_than_its_length(part: str) -> None:
    """Other users' programs write some of the texts; this one would take hours where a pattern goes back."""
    assert without_secrets(part * 200_000)

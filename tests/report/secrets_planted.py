"""Secrets as programs print them, none of which is one."""

from __future__ import annotations

from hpc_elastic.named_tuple import NamedTuple


class Secret(NamedTuple):
    """A text, and the part of it that nobody else is to see."""

    text: str
    value: str


def _token(begin: str, length: int = 36) -> Secret:
    return Secret(f"{begin}{('Zq7' * length)[:length]}", f"{('Zq7' * length)[:length]}")


_JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
PLANTED = (
    _token("hf_"),
    _token("ghp_"),
    _token("ghs_"),
    _token("github_pat_"),
    _token("glpat-", 20),
    _token("sk-proj-"),
    Secret("AKIAZQ7ZQ7ZQ7ZQ7ZQ7A", "ZQ7ZQ7ZQ7ZQ7"),
    _token("xoxb-"),
    Secret(_JWT, "eyJzdWIiOiJhbGljZSJ9"),
    _token("AIza"),
    _token("pypi-"),
    _token("npm_"),
    Secret("https://alice:in-the-url@host/repo.git", "in-the-url"),
    Secret("Authorization: Bearer of-the-bearer-1234", "of-the-bearer-1234"),
    Secret("Authorization: Basic YWxpY2U6b2YtdGhlLWJhc2lj", "YWxpY2U6b2YtdGhlLWJhc2lj"),
    Secret(
        "wandb.login(key='0123456789abcdef0123456789abcdef01234567')",
        "0123456789abcdef0123456789abcdef01234567",
    ),
    Secret("https://hooks.slack.com/services/T0/B0/of-the-hook", "of-the-hook"),
    Secret("WANDB_API_KEY=0of1of2of3of", "0of1of2of3of"),
    Secret("AWS_SECRET_ACCESS_KEY='of the cloud'", "of the cloud"),
    Secret("PGPASSWORD=of-the-base psql", "of-the-base"),
    _token("gsk_"),
    _token("r8_"),
    Secret("Authorization: token 0of1the2other3scheme", "0of1the2other3scheme"),
    Secret("X-Api-Key: of-the-4th-header", "of-the-4th-header"),
    Secret("db_password: 0f-a-setting", "0f-a-setting"),
    Secret("https://discord.com/api/webhooks/123/of-the-room", "of-the-room"),
    Secret("https://api.telegram.org/bot123456:AA-of-the-bot/sendMessage", "AA-of-the-bot"),
    Secret("--hub-token behind-a-flag", "behind-a-flag"),
    Secret("{'db_password': 'in-a-dict'}", "in-a-dict"),
    Secret('{"credentials": "in-json"}', "in-json"),
)

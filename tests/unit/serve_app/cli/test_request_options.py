"""What `ask` and `plan` refuse before anything is asked: a plain line, and exit code 1 or 2."""

from __future__ import annotations

import io

import pytest

from serve_app.__main__ import main

NOWHERE = ["--url", "http://127.0.0.1:9"]
"""Nobody answers there: what is asked all the same ends with exit code 1 and says so."""
BOTH = pytest.mark.parametrize("name", ["ask", "plan"])


@BOTH
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "0", "-1"])
def test_a_limit_is_a_finite_number_above_zero(name: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "Hi", *NOWHERE, "--max-cost-usd", number]) == 2
    assert "Error: Invalid value for '--max-cost-usd': " in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "2.1", "-1"])
def test_a_temperature_is_a_number_from_0_to_2(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "Hi", *NOWHERE, "--temperature", number]) == 2
    assert "Error: Invalid value for '--temperature': " in capsys.readouterr().err


@BOTH
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # as Python reads stdin in UTF-8 and in the C locale
def test_stdin_that_is_not_text_is_one_line_and_exit_code_1(
    name: str, errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe bad"), "utf-8", errors))
    assert main([name, *NOWHERE]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the prompt ")
    assert said.endswith(" text\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["\udcff"], ["Hi", "--system", "\udcff"], ["Hi", "--k", "\udcff"]])
def test_arguments_that_are_not_text_are_one_line_and_exit_code_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", *arguments, *NOWHERE]) == 1
    assert capsys.readouterr().err == "error: the prompt or an option is not UTF-8 text\n"


@BOTH
@pytest.mark.parametrize(("arguments", "stdin"), [([""], "unread"), ([" "], "unread"), ([], ""), (["-"], "\n")])
def test_an_empty_prompt_is_wrong_usage(
    name: str, arguments: list[str], stdin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    assert main([name, *arguments, *NOWHERE]) == 2
    assert capsys.readouterr().err.endswith("Error: the prompt is empty\n")


@pytest.mark.parametrize("arguments", [["ask", "Hi"], ["plan", "Hi"], ["tiers"]])
@pytest.mark.parametrize("url", ["localhost:8123", "ftp://localhost:8123"])
def test_a_url_without_its_scheme_is_wrong_usage(
    url: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--url", url]) == 2
    said = capsys.readouterr().err
    assert f"'{url}' needs http:// or https:// at its start, as in http://localhost:8000" in said

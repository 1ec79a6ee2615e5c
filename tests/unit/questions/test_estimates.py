"""Estimates from collected answers: the answers that count, and the command's results from files of answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from schemas import Answer, GrantRecord
from sotto import Driver
from stream.cli import main
from stream.privacy.planning.response_plans import ShareEstimateError, estimate_stream_shares
from tests.builders import KEY
from tests.unit.budget.budget_service import ledger_codec
from tests.unit.installation import answer_codec

Command = Callable[..., tuple[int | str | None, str, str]]

TRUTH = ["yes"] * 120 + ["no"] * 280


def collected() -> tuple[GrantRecord, list[Answer]]:
    driver = Driver(KEY, partitions=1)
    driver.register({"kind": "records", "source": "people", "epsilon": 4.0})
    mechanism = {"kind": "randomized_response", "categories": ["yes", "no"]}
    for stream in ("survey", "other"):
        driver.open({"stream": stream, "source": "people", "epsilon": 2.0, "mechanism": mechanism})
    answers = driver.ask_many(
        {"id": f"{stream}-{number}", "stream": stream, "category": category}
        for number, category in enumerate(TRUTH)
        for stream in ("survey", "other")
    )
    rejected = driver.ask_many([{"id": "rejected", "stream": "survey", "value": 1.0}])
    return grant_of(driver, "survey"), [*answers, *rejected]


def grant_of(driver: Driver, stream: str) -> GrantRecord:
    records = [ledger_codec.decode(record.value or b"") for record in driver.records(driver.topics.ledger)]
    return [one for one in records if isinstance(one, GrantRecord) and one.spec.stream == stream][-1]


def test_shares_of_a_stream_count_each_answer_once() -> None:
    """Answers to other streams do not count."""
    grant, answers = collected()
    found = estimate_stream_shares(grant, answers)
    assert (found.stream, found.events, found.beta) == ("survey", 400, 0.05)
    yes, no = found.shares
    assert (yes.category, no.category) == ("yes", "no")
    assert yes.answers + no.answers == 400
    assert yes.low < 0.3 < yes.high
    assert abs(yes.estimate - 0.3) <= grant.calibration.alpha * (1000 / 400) ** 0.5
    assert estimate_stream_shares(grant, [*answers, *answers]) == found


def test_smaller_beta_widens_the_intervals() -> None:
    grant, answers = collected()
    usual, sure = (estimate_stream_shares(grant, answers, beta).shares[0] for beta in (None, 1e-9))
    assert sure.low < usual.low < usual.high < sure.high
    with pytest.raises(ShareEstimateError, match="beta: 2 is not a probability"):
        estimate_stream_shares(grant, answers, 2.0)


def test_answers_of_several_streams_are_refused() -> None:
    grant, answers = collected()
    one = next(answer for answer in answers if answer.stream == "survey")
    other = one.model_copy(update={"choice": "no" if one.choice == "yes" else "yes"})
    with pytest.raises(ShareEstimateError, match="two differ at index 0"):
        estimate_stream_shares(grant, [one, other])
    with pytest.raises(ShareEstimateError, match="a category that the stream does not have"):
        estimate_stream_shares(grant, [one.model_copy(update={"choice": "perhaps"})])
    with pytest.raises(ShareEstimateError, match="there is none of stream 'survey'"):
        estimate_stream_shares(grant, [answer for answer in answers if answer.stream == "other"])


def test_shares_are_estimated_for_randomized_response_alone() -> None:
    driver = Driver(KEY, partitions=1)
    driver.register(
        {"kind": "values", "source": "feed", "neighbors": "replace", "epsilon": 4.0, "sensitivity": 1.0}
    )
    driver.open({"stream": "numbers", "source": "feed", "epsilon": 1.0, "mechanism": {"kind": "laplace"}})
    with pytest.raises(ShareEstimateError, match="runs laplace; estimates are for randomized_response"):
        estimate_stream_shares(grant_of(driver, "numbers"), [])


def answer_file_options(folder: Path, grant: GrantRecord, answers: Sequence[Answer]) -> list[str]:
    """Return the command's options for files of collected answers."""
    (folder / "grant.json").write_text(grant.model_dump_json())
    (folder / "answers.jsonl").write_bytes(b"\n".join(answer_codec.encode(answer) for answer in answers) + b"\n")
    return ["--grant", str(folder / "grant.json"), "--answers", str(folder / "answers.jsonl")]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process; return status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr("sys.argv", ["sotto", "estimate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


def test_estimate_command_reads_files_without_kafka(tmp_path: Path, command: Command) -> None:
    grant, answers = collected()
    files = answer_file_options(tmp_path, grant, answers)
    status, out, _ = command("people", "survey", "--json", *files)
    assert status == 0
    printed = json.loads(out)
    assert printed["events"] == 400
    assert [share["estimate"] for share in printed["shares"]] == [
        share.estimate for share in estimate_stream_shares(grant, answers).shares
    ]
    status, out, _ = command("people", "survey", *files)
    assert status == 0
    assert "400 answers" in out
    assert "yes" in out


def test_estimate_command_reports_a_faulty_file_in_one_line(tmp_path: Path, command: Command) -> None:
    grant, answers = collected()
    files = answer_file_options(tmp_path, grant, answers)
    for arguments, words in [
        (("people", "other", *files), "grant: belongs to stream 'survey'"),
        (("people", "survey", *files[:3], str(tmp_path / "none")), "cannot read"),
        (("people", "survey", *files, "--beta", "7"), "beta: 7 is not a probability"),
    ]:
        status, _, err = command(*arguments)
        assert status == 1
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\x00\xff\xfe\x80", "Invalid JSON"),
        (b"[" * 100_000, "100000 objects and lists; give at most"),
        ("é".encode("utf-16"), "Invalid JSON"),
    ],
    ids=["bytes", "nested", "utf-16"],
)
def test_line_that_is_no_answer_is_reported_with_its_file(
    line: bytes, words: str, tmp_path: Path, command: Command
) -> None:
    grant, answers = collected()
    files = answer_file_options(tmp_path, grant, answers[:1])
    path = Path(files[-1])
    path.write_bytes(path.read_bytes() + line)
    status, _, error = command("people", "survey", *files)
    assert status == 1
    assert error.startswith(f"error: --answers: {path}, answer 2: {words}")
    assert error.count("\n") == 1

"""The commands about populations, allotments and renewal, on an installation in memory."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from schemas import Position, StreamStatus
from sotto import Driver
from stream.cli import output
from stream.cli.service_commands import describe_addresses, warn_about_witnesses
from stream.dev.ledger_restoration import HALTED_REASON, ROLLBACK_REASONS
from stream.questions.source_warnings import warn_about_repetition
from stream.settings import Settings
from tests.builders import KEY, parse_source, source, stream
from tests.commands import connect_commands, run_connected
from tests.unit.installation import HIGH, spec


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(KEY, partitions=1)
    connect_commands(monkeypatch, made)
    monkeypatch.setenv("COLUMNS", "200")
    return made


def test_population_is_registered_joined_and_shown(driver: Driver) -> None:
    said = run_connected("population", "register", '{"population": "patients", "epsilon": 3, "renews": "30d"}')
    assert "population patients is registered with ε 3" in said
    assert "privacy is per period, not for ever: every 30 days a person may lose ε = 3 again" in said
    run_connected("source", "add", json.dumps(source("wards", population="patients")))
    run_connected("source", "add", json.dumps(source("visits")))
    driver.open(spec("a", "visits", epsilon=0.5))
    assert "source visits belongs to population patients" in run_connected("source", "join", "visits", "patients")
    shown = run_connected("population", "show", "patients")
    for words in ("wards", "visits", "ε 2.5", "period 1 ends at", "not for ever"):
        assert words in shown
    assert "30d" in run_connected("population", "list")
    lines = run_connected("source", "list").splitlines()
    assert all("ε 2.5" in line for line in lines if "wards" in line or "visits" in line)
    assert "left of its population" in "".join(lines)
    limits = (
        "it also counts against population patients, which has ε 2.5 left: a new stream costs at most the smaller"
    )
    assert limits in run_connected("source", "show", "visits")
    document = json.loads(run_connected("population", "show", "patients", "--json"))
    assert document["population"]["left"]["epsilon"] == 2.5
    assert [one["source"]["source"] for one in document["sources"]] == ["visits", "wards"]


@pytest.mark.parametrize("accountant", ["pure", "zcdp"])
def test_source_warns_if_the_ledger_lacks_spending_of_its_streams(
    driver: Driver, accountant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reports what a stream has spent before the budget service adds it up; under zCDP only ε grows."""
    driver.register(source(accountant=accountant, delta=0.0 if accountant == "pure" else 1e-6))
    driver.open(spec("a", epsilon=0.1, cutoff=3))
    driver.ask("a", value=HIGH)
    earlier = driver.list_streams("feed")
    driver.ask("a", value=HIGH)
    [now] = driver.list_streams("feed")
    status = StreamStatus(
        stream="a",
        source="feed",
        incarnation=now.identity.incarnation,
        state="open",
        answered=now.answered,
        tops=now.tops,
        tops_left=1,
        spent=now.spent,
        alpha=1.0,
        position=Position(topic="queries", partition=0, offset=1),
    )
    monkeypatch.setattr(driver, "statuses", lambda _: {"a": (status, 1.0)})
    said = "the source's 'spent' is less than its streams have spent"
    assert said not in run_connected("source", "show", "feed")
    free = status.model_copy(update={"answered": now.answered + 5})
    with monkeypatch.context() as one:
        one.setattr(driver, "statuses", lambda _: {"a": (free, 1.0)})
        assert json.loads(run_connected("stream", "show", "a", "--json"))["answered"] == now.answered + 5
        last = status.model_copy(update={"tops": 3, "answered": 9, "state": "exhausted"})
        one.setattr(driver, "statuses", lambda _: {"a": (last, 1.0)})
        assert json.loads(run_connected("stream", "show", "a", "--json"))["state"] == "exhausted"
    monkeypatch.setattr(driver, "list_streams", lambda *_, **__: earlier)
    assert said in run_connected("source", "show", "feed")


def test_allotment_is_made_spent_and_shown(driver: Driver) -> None:
    driver.register(source())
    said = run_connected(
        "allot", "study", "--epsilon", "1", "--source", "feed", "--analyst", "ada", "--analyst", "bob"
    )
    assert "ada, bob may have ε 1 and the budget's δ of source feed" in said
    said = run_connected("allot", "study", "--epsilon", "1", "--source", "feed")
    assert "ada, bob may have ε 1 and the budget's δ of source feed" in said
    run_connected("stream", "open", json.dumps(spec("a", epsilon=0.5, cutoff=4)), "--analyst", "ada")
    run_connected("stream", "extend", "feed", "a", "--epsilon", "0.25", "--analyst", "ada")
    driver.ask("a", value=HIGH)
    shown = run_connected("source", "show", "feed")
    for words in ("1 allotment,", "ada, bob", "analyst"):
        assert words in shown
    document = json.loads(run_connected("source", "show", "feed", "--json"))
    assert document["grants"][0]["analyst"] == "ada"
    assert document["allotments"][0]["left"]["epsilon"] < 0.5
    run_connected("allot", "eve", "--epsilon", "0.5", "--source", "feed")
    assert (
        json.loads(run_connected("allot", "eve", "--epsilon", "0.5", "--source", "feed", "--json"))["outcome"]
        == "registered"
    )


def test_allotment_has_no_more_left_than_the_population_of_its_source(driver: Driver) -> None:
    run_connected("population", "register", '{"population": "patients", "epsilon": 3}')
    driver.register(source(population="patients"))
    driver.register(source("wards", population="patients"))
    run_connected("allot", "ada", "--epsilon", "1", "--source", "feed")
    driver.open(spec("b", "wards", epsilon=2.75), acknowledge=True)
    shown = run_connected("source", "show", "feed")
    assert "1 allotment, limited by the budget and that of population patients" in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("│ ada"))
    assert "ε 0.25 " in row


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("budget", [[], ["--source", "feed", "--population", "patients"]])
def test_allotment_is_of_one_budget(budget: list[str]) -> None:
    with pytest.raises(output.CommandError, match="give the budget with either --source or --population"):
        run_connected("allot", "ada", "--epsilon", "1", *budget)


def test_past_period_is_shown_as_over(driver: Driver) -> None:
    driver.register(source(renews="1h"))
    assert "it is over, and the next period begins with the next event" in run_connected("source", "show", "feed")


def test_up_names_another_program_on_the_usual_port() -> None:
    """Producers with the usual address would write to the other program's broker."""
    moved = "127.0.0.1:22776"
    printed = describe_addresses(moved, Path("logs"), None, started_broker=True)
    assert "stops it. Another program has 127.0.0.1:9092: " in printed  # a line break would be printed escaped
    for address, port, started in (("127.0.0.1:9092", None, True), (moved, 22776, True), (moved, None, False)):
        assert "Another" not in describe_addresses(address, Path("logs"), port, started_broker=started)


def test_source_show_has_attributes_person_and_contribution(driver: Driver) -> None:
    """Each attribute has its values as declared, and its column if another one is read."""
    declared = {
        "sex": ["F", "M"],
        "pain": {"kind": "categories", "values": ["mild", "high"], "ordered": True, "other": "mild"},
        "age": {"kind": "integers", "minimum": 0, "maximum": 9, "outside": "reject"},
        "price": {"kind": "decimal", "minimum": -100, "maximum": 400, "step": 0.5},
        "day": {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-12-31"},
        "weekday": {"kind": "date", "granularity": "weekday"},
        "hour": {"kind": "timestamp", "granularity": "hour-of-day"},
        "seen": {"kind": "timestamp", "minimum": "2024-01-01", "maximum": "2024-12-31", "zone": "Asia/Tokyo"},
        "bmi": {"kind": "bins", "edges": [10, 20, 30.5]},
        "note": {"kind": "text", "max_length": 20},
    }
    about = source(
        "visits",
        "table",
        person="who",
        contribution=2,
        attributes=declared,
        columns=dict.fromkeys(("weekday", "hour", "seen"), "day"),
    )
    cells = {
        "sex": "F",
        "pain": "mild",
        "age": 1,
        "price": 0,
        "day": "2024-03-01",
        "bmi": 12,
        "note": "a",
        "who": "p",
    }
    driver.register(about, {name: [cell] for name, cell in cells.items()})
    shown = run_connected("source", "show", "visits")
    for name, values in (
        ("sex", "'F', 'M'"),
        ("pain", "'mild', 'high', in this order; others count as 'mild'"),
        ("age", "0 to 9; others do not count"),
        ("price", "-100 to 400 in steps of 0.5"),
        ("day", "2024-01-01 to 2024-12-31 by day"),
        ("weekday", "weekday, 1 to 7; 1 is Monday, 7 is Sunday"),
        ("hour", "hour-of-day, 0 to 23 in UTC"),
        ("seen", "2024-01-01 to 2024-12-31 by day in Asia/Tokyo"),
        ("bmi", "10 to 30.5 in 2 bins"),
        ("note", "private, at most 20 bytes"),
    ):
        assert any(f" {name} " in line and values in line for line in shown.splitlines()), name
    assert "of each 'who' at most 2 rows count" in shown
    assert "10 attributes" in shown


def test_source_commands_set_and_show_the_engine(driver: Driver) -> None:
    """``--engine`` replaces the declared engine; list and show name it, with the number of rows that fit into memory."""
    table = source("people", "table", path="in memory", attributes={"age": 100, "zip": 1000})
    driver.register({**table, "source": "first"}, {"age": [1], "zip": [2]})
    driver._tables.put("people", pl.DataFrame({"age": [1], "zip": [2]}))
    room = "memory has room for 715,827,882 of its rows, 3 bytes each"
    said = run_connected("source", "add", json.dumps(table), "--engine", "duckdb")
    assert f"counted in DuckDB, and take 4 bytes of disk each; {room}" in said
    assert "each row is taken as one person; if a person has several rows, declare 'person' and" in said
    assert (
        "a row is left out if a cell of any attribute is missing or unreadable\n'sotto source check' shows" in said
    )
    opened = run_connected("stream", "open", json.dumps(spec("rows", "first")))
    for shown in (opened, run_connected("stream", "show", "rows")):
        assert "a row is left out if a cell of any attribute is missing or unreadable\n" in shown
        assert "each row is taken as one person; if a person has several rows, declare 'person' and" in shown
    driver.register(source())
    assert "left out" not in run_connected("stream", "open", json.dumps(spec("values")))
    assert "table, duckdb" in run_connected("source", "list")
    driver._tables.put("visits", pl.DataFrame({"who": [1], "age": [1], "zip": [2]}))
    visits = {**table, "source": "visits", "person": "who", "contribution": 5}
    counted = "of each 'who' at most 5 rows count; no ± covers a person's other rows"
    assert counted in run_connected("source", "add", json.dumps(visits))
    assert "counted in DuckDB" in run_connected("source", "show", "people")
    assert f"counted in memory; {room}" in run_connected("source", "show", "first")
    with pytest.raises(output.CommandError, match="--engine: feed has no table; leave the option out"):
        run_connected("source", "add", json.dumps(source()), "--engine", "duckdb")


@pytest.mark.parametrize(
    ("sensitivity", "grid", "noise"),
    [(0.01, 1, "; the noise is that of a sensitivity of 1, because"), (0.3, 0.1, None), (2, 1, None)],
)
def test_source_of_values_says_how_it_rounds(
    driver: Driver, sensitivity: float, grid: float, noise: str | None
) -> None:
    """The default grid of 1 makes shares whole numbers, and their noise a hundred times larger."""
    driver.register(source("shares", sensitivity=sensitivity, grid=grid))
    shown = run_connected("source", "show", "shares")
    assert " count as the nearer end, and values are " in shown
    assert f"rounded to multiples of {grid:g}, the grid" in shown
    assert (noise or "the noise is") in shown if noise else "the noise is" not in shown


def test_opening_of_local_privacy_says_who_sends_an_event(driver: Driver) -> None:
    """Without ``contributions`` one event of a stream stands for one person."""
    taken = (
        "each event is taken as one person; if a person sends several events to a stream, declare 'contributions'"
    )
    for name, contributions, said in (("once", 1, True), ("often", 3, False)):
        driver.register(source(name, "records", contributions=contributions))
        mechanism = {"kind": "randomized_response", "categories": ["a", "b"]}
        stream = {"stream": f"mood-{name}", "source": name, "epsilon": 1.0, "mechanism": mechanism}
        opened = run_connected("stream", "open", json.dumps(stream))
        for shown in (opened, run_connected("stream", "show", f"mood-{name}")):
            assert (taken in shown) is said


def test_source_command_warns_of_the_data_of_another_budget(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two budgets of one table add up for its people, unless its sources share the budget of one population."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("p.csv", "q.csv"):
        (tmp_path / "data" / name).write_text("age,sex\n30,F\n")

    def added(name: str, path: str, **changed: object) -> str:
        declared = source(name, "table", path=path, **changed)
        return run_connected("source", "add", json.dumps(declared))

    driver.register_population({"population": "patients", "epsilon": 3})
    assert "warning" not in added("first", "data/p.csv")
    again = added("second", "./data/p.csv", population="patients")
    assert "warning: path: second has the same data as 'first', but a separate budget" in again
    assert "with 'sotto source join', or end the streams of one with 'sotto stream close'" in again
    assert "people; end the streams" in added("replaced", "data/p.csv", neighbors="replace"), "it cannot join"
    driver.halt("replaced")
    assert "warning" not in added("other", "data/q.csv")
    assert "warning" not in run_connected("source", "join", "first", "patients")
    assert "warning" not in added("third", "data/p.csv", population="patients")
    driver.halt("first")
    assert "'second', 'third', but" in added("fourth", "data/p.csv")
    driver.register_population({"population": "visitors", "epsilon": 12})
    split = run_connected("source", "join", "fourth", "visitors")
    assert "warning: path: fourth has the same data as 'second', 'third', but a separate budget" in split


def test_source_command_warns_of_what_a_halted_source_has_spent(driver: Driver, tmp_path: Path) -> None:
    """The people of its table are the same, so the new budget must be what the old one has left."""
    for name in ("p.csv", "q.csv"):
        (tmp_path / name).write_text("age,sex\n30,F\n")

    def added(name: str, file: str = "p.csv", **changed: object) -> str:
        declared = source(name, "table", path=str(tmp_path / file), **changed)
        return run_connected("source", "add", json.dumps(declared))

    driver.register_population({"population": "patients", "epsilon": 30})
    added("spent", population="patients")
    driver.open(stream("ages", "spent", mechanism={"kind": "histogram", "attributes": ["sex"]}, epsilon=1.0))
    added("unspent")
    driver.ask({"stream": "ages", "where": "TRUE"})
    driver.halt("unspent")
    driver.halt("spent")
    warning = added("younger")
    assert "warning: path: younger has the same data as 'spent', which is halted; its spending adds up" in warning
    assert "for that much less than its budget, see 'sotto source show spent'\n" in warning
    assert "is halted" not in added("member", population="patients"), "the population counts what was spent"
    assert "warning" not in added("elsewhere", "q.csv")
    driver.halt("younger", reason=HALTED_REASON)
    both = added("last")
    assert "'spent', 'younger', which are halted; their spending" in both
    assert "see 'sotto source show' of each; some grants of 'younger' are unknown\n" in both
    joined = run_connected("source", "join", "last", "patients")
    assert "as 'younger', which is halted" in joined
    assert "see 'sotto source show younger'; some grants of 'younger' are unknown\n" in joined


def test_source_command_warns_if_the_source_was_registered_before(driver: Driver, tmp_path: Path) -> None:
    """A repeated registration does not read the table again, so the command names the one that does."""
    path = tmp_path / "p.csv"
    path.write_text("age,sex\n30,F\n")
    declared = json.dumps(source("people", "table", path=str(path)))
    assert "warning" not in run_connected("source", "add", declared)
    path.write_text("age,sex\n30,F\n31,F\n")
    again = run_connected("source", "add", declared)
    assert "warning: source: 'people' was registered before, so nothing changes; if its table has" in again
    assert "run 'sotto source refresh people'" in again
    assert "warning" not in run_connected("source", "add", json.dumps(source()))
    assert "'feed' was registered before, so nothing changes\n" in run_connected(
        "source", "add", json.dumps(source())
    )
    driver.halt("feed")
    halted = run_connected("source", "add", json.dumps(source()))
    assert "'feed' was registered before and is halted for good (" in halted
    assert "nothing changes" not in halted
    assert "\nhalted: " in run_connected("source", "show", "feed")


def test_repeated_registration_tells_of_grants_after_a_backup() -> None:
    """What a restored source has left does not count the grants that the backup lacks."""
    known = parse_source(source())
    for reason in (HALTED_REASON, ROLLBACK_REASONS[1]):
        told = warn_about_repetition(known, {known.source: reason})
        assert told is not None
        assert told.endswith(" has left, less the unknown grants")


def test_up_names_a_witness_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing folder is reported at the start, and stops nothing; a witness without an anchor is no error."""
    warn_about_witnesses(Settings(witnesses=f"file://{tmp_path}/anchors, file://{tmp_path}/away/anchors"))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: witness: file://{tmp_path}/away/anchors: No such file")
    with pytest.raises(output.CommandError, match="SOTTO_WITNESSES: address 1"):
        warn_about_witnesses(Settings(witnesses="nowhere"))


def test_stream_show_warns_of_answers_beyond_the_promise(driver: Driver) -> None:
    driver.register(source())
    driver.open(spec("ward", expected_queries=2, cutoff=5))
    driver.ask_many([{"stream": "ward", "value": HIGH}] * 2)
    assert "is promised" not in run_connected("stream", "show", "ward")
    driver.ask("ward", value=HIGH)
    assert "warning: more than the 2 answers for which α is promised: " in run_connected("stream", "show", "ward")


@pytest.mark.parametrize("accountant", ["pure", "zcdp"])
def test_stream_show_says_that_a_rest_pays_only_for_cheap_questions(driver: Driver, accountant: str) -> None:
    """The rest after a question with a requested error may be less than the price of an ordinary answer."""
    budget = {"epsilon": 9.0, "accountant": accountant, "delta": 0.0 if accountant == "pure" else 1e-6}
    driver.register(
        source("people", "table", path="in memory", attributes={"sex": ["F", "M"]}, **budget), {"sex": ["F"] * 9}
    )
    driver.open(stream("s", "people", epsilon=1.0, mechanism={"kind": "laplace", "answers": 2}), acknowledge=True)
    driver.ask("s", where="TRUE", alpha=90.0)
    driver.ask("s", where="TRUE")
    shown = run_connected("stream", "show", "s")
    assert "s on people: exhausted" in shown
    assert "the rest of the grant pays only for cheap questions with an alpha; the promise covers the" in shown
    assert "the grant is used up" not in shown
    assert driver.ask("s", where="TRUE", alpha=90.0).outcome == "answer"


def test_added_source_says_which_rows_are_left_out(driver: Driver) -> None:
    """Rows with an undeclared category or outside a range that rejects are left out; `other` keeps a category."""
    sexes = {"kind": "categories", "values": ["F", "M"]}
    attributes = {
        "sex": sexes,
        "ward": {"kind": "categories", "values": ["a", "none"], "other": "none"},
        "fee": {"kind": "integers", "minimum": 0, "maximum": 9, "outside": "reject"},
    }
    reasons = "is missing or unreadable, or a category is not declared, or 'fee' is outside its range"
    other = "; a missing or undeclared category of 'ward' counts as the declared 'other'\n"
    for chosen, words in (
        (("sex", "ward", "fee"), reasons + other),
        (("ward",), "is missing or unreadable" + other),
    ):
        names = {name: attributes[name] for name in chosen}
        table = source("-".join(chosen), "table", path="in memory", attributes=names)
        driver._tables.put("-".join(chosen), pl.DataFrame({"sex": ["F"], "ward": ["a"], "fee": [1]}))
        assert words in run_connected("source", "add", json.dumps(table))

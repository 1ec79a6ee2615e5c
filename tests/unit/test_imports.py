"""Imports of the command and the public package, and their errors for missing or hidden packages."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import sotto
from stream import VERSION
from stream.cli.app import COMMANDS, LazyCommand, _load_command
from stream.cli.manage.budget_commands import CHECK
from stream.optional_packages import EXTRA_OF_PACKAGE
from tests.preloaded import PROGRAM_SECONDS

PROJECT = Path(__file__).parents[2]
HEAVY = sorted({*EXTRA_OF_PACKAGE, "pandas", "pyarrow", "sqlglot", "structlog"})

LISTING = f"""
import json, sys
try:
    %s
except SystemExit:
    pass
print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
{code}
"""


def run(code: str, *, cwd: Path = PROJECT, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SOTTO_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**kept, "COLUMNS": "120", "PYTHONPATH": str(PROJECT), **environment},
        timeout=PROGRAM_SECONDS,
    )


def command(*arguments: str) -> str:
    return f"sys.argv = {['sotto', *arguments]}; from sotto.__main__ import main; main()"


@pytest.mark.parametrize(
    "code",
    [
        command("--help"),
        command("--version"),
        command("ask", "--help"),
        command("source", "--help"),
        command("stream", "open", "--help"),
        "import sotto",
        "from sotto import AsyncClient, Client, Refused, Settings",
    ],
)
def test_help_and_clients_import_nothing_heavy(code: str) -> None:
    done = run(LISTING % code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("stream.services.runner, stream.worker.worker_processor", {"scipy", "polars", "sqlglot"}),
        ("stream.services.runner, stream.budget.budget_processor", {"scipy", "polars"}),
        ("stream.services.feed_service", {"scipy", "polars"}),
    ],
)
def test_services_start_without_modules_of_planning_and_tables(modules: str, absent: set[str]) -> None:
    done = run(LISTING % f"import stream.cli.service_commands, {modules}")
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "numpy" in loaded
    assert not absent & {*loaded}


def test_worker_starts_without_the_budget_service() -> None:
    """Its import takes a tenth of the processor time of a worker's start."""
    code = (
        "import sys, stream.services.runner, stream.worker.worker_processor\n"
        "print([name for name in sys.modules if name.startswith('stream.budget')])"
    )
    assert run(code).stdout.strip() == "[]"


def test_table_is_read_without_the_parser_of_predicates() -> None:
    code = "import stream.tables.readers.reading_protocol; next(stream.tables.readers.reading_protocol.open_table_parts('stream/tables/flights/flights.parquet'))"
    assert json.loads(run(LISTING % code).stdout) == ["numpy", "polars"]


def test_heavy_import_is_detected() -> None:
    assert "numpy" in json.loads(run(LISTING % "from sotto import Driver").stdout)


@pytest.mark.parametrize(("name", "later"), [*COMMANDS.items(), ("check", CHECK)])
def test_help_lists_each_command_with_its_own_summary(name: str, later: LazyCommand) -> None:
    said = (_load_command(name, later).help or "").split("\n\n")[0].replace("\n", " ").strip()
    assert said == later.help


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(["source", one, "--help"] for one in ("add", "show")),
        *(["stream", one, "--help"] for one in ("open", "close", "halt", "show")),
        *([one, "--help"] for one in ("ask", "answers", "topics", "sql")),
    ],
    ids=" ".join,
)
def test_client_alone_has_the_commands_of_an_installation(arguments: list[str]) -> None:
    """These commands only talk to Kafka."""
    done = run(WITHOUT.format(missing=set(EXTRA_OF_PACKAGE), code=command(*arguments)))
    assert done.returncode == 0, done.stderr
    assert "Usage: sotto" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["key", "new", "noise.key"], ["contract", "check", str(PROJECT / "contract")]], ids=str
)
def test_client_alone_makes_keys_and_checks_the_contract(arguments: list[str], tmp_path: Path) -> None:
    """A noise key is made, and the published contract compared, in an installation without any extra."""
    done = run(WITHOUT.format(missing=set(EXTRA_OF_PACKAGE), code=command(*arguments)), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["plan"], "worker"),
        (["simulate"], "worker"),
        (["serve", "worker"], "worker"),
        (["serve", "monitor"], "monitor"),
        (["source", "check", "{}"], "worker"),
        (["top"], "monitor"),
        (["broker", "start"], "broker"),
        (["up"], "all"),
        (["demo"], "all"),
    ],
    ids=str,
)
def test_command_without_its_packages_names_the_extra_in_one_line(arguments: list[str], extra: str) -> None:
    done = run(WITHOUT.format(missing=set(EXTRA_OF_PACKAGE), code=command(*arguments)))
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(f"is not installed; run: pip install 'sotto-dp[{extra}]'")


def test_client_alone_checks_a_statement_before_the_question() -> None:
    code = """
from schemas import Integers
from stream.sql.select_statements import parse_statement
from stream.tables.predicates import PredicateParser

parse_statement("SELECT COUNT(*) FROM t WHERE age > 3")
PredicateParser({"age": Integers(kind="integers", minimum=0, maximum=9)}).parse("age > 3")
"""
    done = run(WITHOUT.format(missing=set(EXTRA_OF_PACKAGE), code=code))
    assert done.returncode == 0, done.stderr


def test_client_alone_compares_streams_as_with_scipy() -> None:
    """Bounds of sums are valid without SciPy too, but larger: few cells are not summed exactly."""
    code = """
from types import SimpleNamespace as Some
from schemas import Integers, StreamSpec
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.plans import choose_calibration
from stream.sql.stream_choice import _alpha

histogram = {"kind": "histogram", "attributes": ["age"]}
spec = StreamSpec.model_validate({"stream": "s", "source": "p", "epsilon": 1.0, "mechanism": histogram})
calibration = choose_calibration(spec, SourceFacts(sensitivity_steps=1, universe=40_000))
source = Some(attributes={"age": Integers(kind="integers", minimum=0, maximum=39_999)})
for rows in (1, 2_000):
    target = Some(grant=Some(spec=spec, calibration=calibration), source=source)
    print(_alpha(Some(target=target, plan=Some(rows=[()] * rows))))
"""
    complete, alone = (run(text) for text in (code, WITHOUT.format(missing=set(EXTRA_OF_PACKAGE), code=code)))
    (many, few), (many_alone, few_alone) = (list(map(float, done.stdout.split())) for done in (complete, alone))
    assert many_alone == pytest.approx(many, rel=1e-3)
    assert few < few_alone < 1.5 * few


def test_bounds_of_a_plan_need_scipy() -> None:
    """A worker must not plan with other bounds than another one."""
    for call in ("normal_reach(1e-9)", "least_bound(abs)"):
        code = f"import stream.privacy.accuracy.noise_laws as laws; laws.{call}"
        done = run(WITHOUT.format(missing={"scipy"}, code=code))
        assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'scipy'"


def test_driver_names_its_missing_extra() -> None:
    done = run(WITHOUT.format(missing={"polars"}, code="from sotto import Driver"))
    message = "stream.errors.Missing: polars is not installed; run: pip install 'sotto-dp[worker]'"
    assert done.stderr.splitlines()[-1] == message


def test_every_named_extra_exists_and_has_the_package() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRA_OF_PACKAGE.items():
        names = [one.partition(">")[0].replace("-", "_") for one in extras[extra]]
        assert any(name.startswith(package) for name in names), package


@pytest.mark.parametrize("own", ["schemas.py", "stream.py", "stream/__init__.py"])
def test_module_that_hides_another_is_reported_in_one_line(own: str, tmp_path: Path) -> None:
    module = tmp_path / own
    module.parent.mkdir(exist_ok=True)
    module.write_text("mine = True\n")
    for before in ("", f"import {own.partition('.')[0].partition('/')[0]}\n"):
        script = tmp_path / "script.py"
        script.write_text(f"{before}from sotto import Client\n")
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            timeout=PROGRAM_SECONDS,
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"ImportError: {module} hides the package"), done.stderr
        assert "rename it" in last
    done = run(f"import sys; {command('--help')}", cwd=tmp_path)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "rename it" in line


def test_command_and_services_import_nothing_from_the_folder(tmp_path: Path) -> None:
    """It is the working folder."""
    for name in ("schemas.py", "stream.py", "sotto.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sotto", "--version"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=PROGRAM_SECONDS,
    )
    assert done.stdout == f"sotto {VERSION}\n", done.stderr
    for path in (
        "stream/services/processes.py",
        "stream/tables/readers/table_reading.py",
    ):
        text = (PROJECT / path).read_text()
        assert len(re.findall(r'sys\.executable,\s+"-P",\s+"-m"', text)) == text.count("sys.executable") > 0


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert sotto.__version__ == VERSION == project["version"] == citation["version"]
    assert project["license"] == citation["license"] == "Apache-2.0"


def test_every_name_of_the_public_package_exists() -> None:
    assert [name for name in sotto.__all__ if getattr(sotto, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'Klient'"):
        _ = sotto.Klient


def test_feed_starts_without_modules_of_other_services() -> None:
    others = [
        "stream.worker",
        "stream.budget",
        "stream.monitor",
        "stream.alerts",
        "stream.dev",
    ]
    result = run(
        f"import json, sys, stream.cli.service_commands, stream.services.feed_service\n"
        f"print(json.dumps([name for name in {others} if name in sys.modules]))"
    )
    assert json.loads(result.stdout) == [], result.stderr


def test_garbage_collection_resumes_once_a_command_is_loaded() -> None:
    _load_command("key", COMMANDS["key"])
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError):
        _load_command("nothing", LazyCommand("stream.nothing:app", ""))
    assert gc.isenabled()


@pytest.mark.parametrize(("missing", "module"), [(set(), "uvloop"), ({"uvloop"}, "asyncio.unix_events")])
def test_services_run_in_uvloop_if_it_is_installed(missing: set[str], module: str) -> None:
    code = """
import asyncio
from stream.cli.service_commands import run_service

async def service():
    print(type(asyncio.get_running_loop()).__module__)

run_service(service())
"""
    result = run(WITHOUT.format(missing=missing, code=code))
    assert (result.stdout, result.returncode) == (f"{module}\n", 0), result.stderr


def test_readme_lists_the_extras_of_users() -> None:
    """The README names each extra that users may need."""
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_developers = {"dev", "docs", "servers"}
    [listed] = re.findall(r"then adds an extra:\n\n(.*?)\n\n", (PROJECT / "README.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) - {"Driver"} == set(extras) - of_developers

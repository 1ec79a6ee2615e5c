"""Divides the tests into the commit suite and the full suites, and orders them for parallel runs.

`make test` runs the commit suite (`-m "not full"`), `make test-full` all other suites (`-m full`). Only the tables below
decide: a path is a folder, a file or the start of a test id, and the longest path that matches a test counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

COMMIT: Final = "commit"

SUITES: Final[dict[str, str]] = {
    "tests/": COMMIT,
    "tests/browser/": "browser",
    "tests/browser/test_questions.py::test_any_value_of_a_large_attribute_makes_a_cell": COMMIT,
    "tests/browser/test_safety.py::test_hostile_names_and_reasons_do_not_become_markup": COMMIT,
    "tests/chaos/": "chaos",
    "tests/chaos/test_checker.py": COMMIT,
    "tests/docs/test_notebook.py": "site",
    "tests/docs/test_on_kafka.py": "site",
    "tests/docs/test_pictures.py": "site",
    "tests/docs/test_production.py": "brokers",
    "tests/docs/test_site.py": "site",
    "tests/kafka/test_table_addresses.py": "brokers",
    "tests/kafka/test_alerts.py::test_dead_target_delays_no_other_and_gets_missed_alerts": "chaos",
    "tests/kafka/test_alerts.py::test_alerts_are_delivered_in_order_through_kills_and_failures": "chaos",
    "tests/kafka/test_auto_creation.py": "brokers",
    "tests/kafka/test_bombs.py": "chaos",
    "tests/kafka/test_broker.py": "brokers",
    "tests/kafka/test_broker_cluster.py": "brokers",
    "tests/kafka/test_clock.py": "chaos",
    "tests/kafka/test_command.py": "brokers",
    "tests/kafka/test_contract.py::test_budget_service_with_lost_ledger_grants_nothing": "chaos",
    "tests/kafka/test_contract.py::test_expired_group_offsets_cause_no_second_answer": "chaos",
    "tests/kafka/test_credentials.py": "brokers",
    "tests/kafka/test_disaster.py": "brokers",
    "tests/kafka/test_examples.py": "site",
    "tests/kafka/test_feed_processes.py": "chaos",
    "tests/kafka/test_feeds.py::test_feed_reports_missing_topic_and_serves_it_once_created": "chaos",
    "tests/kafka/test_feeds.py::test_killed_feeds_and_workers_ask_each_window_once": "chaos",
    "tests/kafka/test_feeds.py::test_window_texts_and_medians_equal_drivers_through_kills": "chaos",
    "tests/kafka/test_feeds_lost.py": "chaos",
    "tests/kafka/test_instances.py": "chaos",
    "tests/kafka/test_interop.py": "brokers",
    "tests/kafka/test_kafka_streams_example.py": "brokers",
    "tests/kafka/test_mechanisms.py::test_releases_and_estimates_are_equal_after_kill": "chaos",
    "tests/kafka/test_monitor.py::test_killed_monitor_shows_same_figures_and_delays_no_service": "chaos",
    "tests/kafka/test_monitor_cut_off.py": "brokers",
    "tests/kafka/test_periods.py": "chaos",
    "tests/kafka/test_processes.py": "chaos",
    "tests/kafka/test_recreated_topics.py": "chaos",
    "tests/kafka/test_rolled_back.py": "brokers",
    "tests/kafka/test_security.py": "brokers",
    "tests/kafka/test_fair_shares.py": "chaos",
    "tests/kafka/test_standby.py": "brokers",
    "tests/kafka/test_tables.py": "chaos",
    "tests/kafka/test_up.py": "brokers",
    "tests/privacy/test_accuracy.py::test_failures_are_no_more_frequent_than_beta": "statistics",
    "tests/privacy/test_answer_accuracy.py": "statistics",
    "tests/privacy/test_audit_statistics.py": "statistics",
    "tests/privacy/test_audit_variants.py": "statistics",
    "tests/privacy/test_broken_variants.py::test_check_finds_a_count_of_tops_lost_at_a_restart": "mutations",
    "tests/privacy/test_broken_variants.py::test_check_finds_noise_redrawn_on_redelivery": "mutations",
    "tests/privacy/test_broken_variants.py::test_check_finds_the_same_noise_for_other_data": "mutations",
    "tests/privacy/test_interval_coverage.py": "statistics",
    "tests/privacy/test_keyed_noise.py::test_pairs_of_draws_follow_the_product_law": "statistics",
    "tests/privacy/test_laplace.py::test_laplace_noise_is_that_of_another_implementation": "statistics",
    "tests/privacy/test_people.py::test_every_wrong_bound_loses_more_than_epsilon": "mutations",
    "tests/privacy/test_people.py::test_every_wrong_bound_loses_more_than_epsilon[no_bound]": COMMIT,
    "tests/privacy/test_periods.py::test_broken_separations_of_periods_are_found": "mutations",
    "tests/privacy/test_pmw.py::test_transcript_of_three_measurements_loses_at_most_its_charge": "simulation",
    "tests/privacy/test_prices.py::test_grant_that_is_not_reduced_is_found": "mutations",
    "tests/privacy/test_prices.py::test_undercharged_measurement_is_found": "mutations",
    "tests/privacy/test_prices.py::test_errors_exceed_the_wanted_ones_in_few_enough_streams": "statistics",
    "tests/privacy/test_running_count.py::test_answers_keep_their_alpha_in_as_many_streams_as_promised": "statistics",
    "tests/privacy/test_running_texts.py::test_check_finds": "mutations",
    "tests/privacy/test_running_texts.py::test_all_answers_keep_epsilon_and_delta[True]": "mutations",
    "tests/privacy/test_typical_truth.py": "statistics",
    "tests/privacy/test_selection.py::test_one_sided_noise_has_the_least_error_on_average": "statistics",
    "tests/privacy/test_service_law.py::test_transcripts_of_many_streams_follow_the_exact_law": "statistics",
    "tests/privacy/test_standing.py::test_broken_counts_are_found": "mutations",
    "tests/privacy/test_standing.py::test_broken_counts_are_found[bound_for_each_batch]": COMMIT,
    "tests/privacy/test_standing.py::test_person_moves_no_end_and_no_extension": "simulation",
    "tests/privacy/test_standing.py::test_person_moves_no_end_and_no_extension[broker-3-behind]": COMMIT,
    "tests/privacy/test_standing.py::test_person_moves_no_end_and_no_extension[marks-3-behind]": COMMIT,
    "tests/privacy/test_standing.py::test_late_feeds_at_an_opening_let_no_person_move_others_counts": "simulation",
    "tests/privacy/test_standing.py::test_late_feeds_at_an_opening_let_no_person_move_others_counts[broker-3-behind]": COMMIT,
    "tests/privacy/test_standing.py::test_late_feeds_at_an_opening_let_no_person_move_others_counts[marks-1-behind]": COMMIT,
    "tests/privacy/test_standing.py::test_late_feeds_at_an_opening_let_no_person_move_others_counts[marks-7-punctual]": COMMIT,
    "tests/release/": "release",
    "tests/simulation/test_idle.py": "simulation",
    "tests/simulation/test_leaving.py": "simulation",
    "tests/simulation/test_live.py": "simulation",
    "tests/simulation/test_live.py::test_each_broken_feed_is_found[no_fencing]": COMMIT,
    "tests/simulation/test_mutations.py": "simulation",
    "tests/simulation/test_mutations.py::test_each_broken_engine_is_found[no_fencing]": COMMIT,
    "tests/simulation/test_periods.py": "simulation",
    "tests/simulation/test_periods.py::test_each_broken_handling_of_periods_is_found[periods_end_early]": COMMIT,
    "tests/simulation/test_schedules.py": "simulation",
    "tests/simulation/test_state_lost.py": "simulation",
    "tests/unit/benchmarks/test_lifetime.py::test_memory_does_not_grow_with_history": "simulation",
    "tests/unit/benchmarks/test_ordinary_questions.py::test_document_shows_the_output_of_the_command": "site",
    "tests/unit/cli/plans/test_plan_command.py::test_calibration_has_one_color_in_every_plot": "site",
    "tests/unit/deployment/test_deploy.py::test_promtool_accepts_the_files_and_alerts_fire_as_intended": "release",
    "tests/unit/dev/test_asyncapi.py::test_asyncapi_parser_accepts": "release",
    "tests/unit/kafka/test_batch_reader.py::test_batch_read_in_several_turns_is_complete_and_ordered[lz4]": "chaos",
    "tests/unit/kafka/test_batch_reader.py::test_batch_read_in_several_turns_is_complete_and_ordered[snappy]": "chaos",
    "tests/unit/kernel/test_twins.py::test_kernel_of_other_source_is_not_loaded": "release",
    "tests/unit/privacy/planning/test_hypotheses.py::test_plan_updates_have_least_error[0.3]": "simulation",
    "tests/unit/privacy/planning/test_hypotheses.py::test_plan_updates_have_least_error[3.0]": "simulation",
    "tests/unit/tables/readers/test_clickhouse.py": "stores",
    "tests/unit/tables/readers/test_guarded_reader.py::test_compressed_bomb_ends_only_its_reading_process[b.csv.gz": "chaos",
    "tests/unit/tables/readers/test_guarded_reader.py::test_compressed_bomb_ends_only_its_reading_process[c.parquet": "chaos",
    "tests/unit/tables/readers/test_postgresql.py": "stores",
    "tests/unit/tables/readers/test_s3_objects.py": "stores",
    "tests/unit/tables/readers/test_spark.py": "stores",
    "tests/unit/witnesses/test_postgresql_witness.py": "stores",
    "tests/unit/witnesses/test_s3_witness.py": "stores",
    "tests/upgrade/test_mixed.py": "versions",
    "tests/upgrade/test_upgrade.py::test_services_continue_where_the_earlier_version_stopped": "versions",
}
"""The suite of the tests below each path; the longest path with which a test's id begins decides."""

FIRST: Final = (
    "tests/release/test_image.py",  # starts first: it waits for the network
    "tests/release/test_release.py",
    "tests/docs/test_site.py",
    "tests/kafka/test_up.py",
    "tests/kafka/test_command.py",
    "tests/docs/test_production.py",
    "tests/chaos/",
    "tests/upgrade/test_mixed.py",
    "tests/browser/",
    "tests/kafka/",
    "tests/docs/",
    "tests/simulation/",
    "tests/privacy/test_answer_accuracy.py",
    "tests/privacy/test_audit_variants.py",
    "tests/privacy/test_standing.py",
    "tests/privacy/test_pmw.py",
    "tests/privacy/",
    "tests/unit/kafka/test_batch_reader.py",
    "tests/unit/privacy/planning/test_hypotheses.py",
    "tests/unit/tables/readers/test_delta.py",
    "tests/unit/privacy/planning/test_planner.py",
    "tests/unit/tables/test_person_rows.py",
    "tests/unit/tables/readers/test_guarded_reader.py",
    "tests/unit/test_imports.py",
    "tests/unit/cli/plans/test_plan_command.py",
    "tests/unit/worker/test_shares.py",
    "tests/unit/cli/test_cli.py",
    "tests/unit/cli/plans/test_plan_comparison.py",
    "tests/unit/privacy/",
    "tests/unit/worker/",
    "tests/unit/feeds/",
)
"""The slowest files and folders, in descending order of duration: if a long test starts last, the other processes wait for it."""

APART: Final = (
    "tests/simulation/test_mutations.py",
    "tests/privacy/test_audit_variants.py",
    "tests/chaos/test_kills.py",
    "tests/chaos/test_network.py",
    "tests/chaos/test_restores.py",
    "tests/chaos/test_starts.py",
)
"""Files whose tests are scheduled one by one: they share no slow fixture."""

TOGETHER: Final = {
    "tests/browser/": "a browser",
    "tests/docs/test_notebook.py": "the site",
    "tests/docs/test_site.py": "the site",
    "tests/kafka/test_security.py": "a secured broker",
    "tests/kafka/test_credentials.py": "a secured broker",
}
"""Files that run in one process because they share a slow fixture."""

ROOT: Final = Path(__file__).parents[1]


@cache
def _rules_of(file: str) -> tuple[tuple[str, str], ...]:
    """Return the paths that tests of a file may match, longest first, with their suites."""
    paths = (path for path in SUITES if file.startswith(path) or path.startswith(f"{file}::"))
    return tuple((path, SUITES[path]) for path in sorted(paths, key=len, reverse=True))


def suite_of(nodeid: str) -> str:
    """Return the suite of a test."""
    return next(suite for path, suite in _rules_of(nodeid.partition("::")[0]) if nodeid.startswith(path))


def has_commit_tests(file: str) -> bool:
    """Return whether any test of a file belongs to the commit suite."""
    return suite_of(file) == COMMIT or any(
        test.startswith(f"{file}::") and suite == COMMIT for test, suite in SUITES.items()
    )


class Schedule(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Distributes tests by file, by test or by shared fixture, as the tables say."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return the unit of distribution: tests with equal scopes run in one process."""
    file = nodeid.partition("::")[0]
    if file in APART:
        return nodeid
    return next((name for path, name in TOGETHER.items() if file.startswith(path)), file)


def rank_of(nodeid: str) -> int:
    """Return the place of a test in the order of the parallel run, by the longest path in FIRST."""
    matches = [path for path in FIRST if nodeid.startswith(path)]
    return FIRST.index(max(matches, key=len)) if matches else len(FIRST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Schedule | None:
    """Use this schedule for ``--dist loadfile``."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # xdist would start the files with the most tests first
    return Schedule(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test modules of a parallel run, each process beginning with others.

    The first import of a module compiles it and rewrites its assertions. In a new clone, each process does that for its share
    and then finds the others' files; in one order, all would do all of it at the same time.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    folders = [ROOT / argument for argument in session.config.args]
    if worker is None or not all(folder.is_dir() for folder in folders):
        return
    files = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    wanted = [path.relative_to(ROOT) for path in files if not pytest_ignore_collect(path, session.config)]
    for file in rotated(wanted, int(worker["workerid"].removeprefix("gw")), worker["workercount"]):
        # Collection imports it again, and reports the error.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.with_suffix("").parts))


def rotated(files: Sequence[Path], worker: int, workers: int) -> list[Path]:
    """Return the files in the order in which a worker imports them: its share first."""
    start = len(files) * worker // workers
    return [*files[start:], *files[:start]]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files that the commit suite does not run."""
    is_test_file = collection_path.name.startswith("test_") and collection_path.is_relative_to(ROOT)
    if config.option.markexpr != "not full" or not is_test_file:
        return None
    return None if has_commit_tests(collection_path.relative_to(ROOT).as_posix()) else True


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the full suites. Parallel processes start with the slowest, a single one with the fastest."""
    for item in items:
        if suite_of(item.nodeid) != COMMIT:
            item.add_marker("full")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(item.nodeid))

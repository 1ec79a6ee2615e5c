"""SQLAlchemy's compliance tests that apply to a dialect that reads only aggregates.

Collected by test_compliance.py. Of ``sqlalchemy.testing.suite``, the other classes do not apply. They
create tables and insert rows (``test_ddl``, ``test_insert``, ``test_update_delete``,
``test_rowcount``, ``test_sequence``, ``test_unicode_ddl``, the fixtures of nearly all others), read
rows back (``test_results``, ``test_types``, ``test_select``, ``test_cte``, ``test_table_via_select``),
reflect keys, indexes, comments and views (the rest of ``test_reflection``), or test transactions and
isolation levels, which a read-only connection does not have (the rest of ``test_dialect``).
"""

from __future__ import annotations

from sqlalchemy.testing.suite import test_dialect, test_reflection


class PingTest(test_dialect.PingTest):  # type: ignore[misc]
    """A ping reads the ledger."""


class ExceptionTest(test_dialect.ExceptionTest):  # type: ignore[misc]
    """Errors are wrapped, also with characters outside ASCII."""

    run_create_tables = run_deletes = None


class ReturningGuardsTest(test_dialect.ReturningGuardsTest):  # type: ignore[misc]
    """Inserts with RETURNING are refused."""

    run_create_tables = run_deletes = None
    # These insert rows first:
    test_update_single = test_update_many = test_delete_single = test_delete_many = None


class HasTableTest(test_reflection.HasTableTest):  # type: ignore[misc]
    """Tables are found by name, one by one and several at once."""

    run_create_tables = run_deletes = None
    test_has_table_cache = None  # creates a table

"""The benchmark's ledger in a small size: it has the opened streams, and so has the ledger restored from its records."""

from __future__ import annotations

from benchmarks.ledger import Service, filled, openings


def account_totals(service: Service) -> dict[str, tuple[float, float, int]]:
    return {
        name: (record.granted.epsilon, record.left.epsilon, record.streams)
        for name, account in service.processor.ledger.accounts.items()
        if (record := account.to_record())
    }


def test_ledger_of_many_grants_is_restored_equal_and_continues() -> None:
    service = filled(1_500, 150)
    before = account_totals(service)
    assert len(before) == 150
    assert {streams for _, _, streams in before.values()} == {10}
    assert all(round(granted + left, 9) == 100.0 and 0.0 < granted <= 0.1 for granted, left, _ in before.values())
    service.restore()
    assert account_totals(service) == before
    service.send(list(openings(150, 150, 1_500)))
    assert {streams for _, _, streams in account_totals(service).values()} == {11}
    # A repeated request and a used name grant nothing.
    service.send(list(openings(150, 150, 1_500)))
    assert {streams for _, _, streams in account_totals(service).values()} == {11}


def test_idle_open_stream_takes_at_most_a_kilobyte_and_a_half() -> None:
    """A grant keeps bytes instead of models, and uses the plan of equal grants; the memory includes a receipt."""
    few, many = filled(500, 5), filled(1_500, 5)
    assert many.memory()[0] - few.memory()[0] <= 1_000 * 1_500
    for service in (few, many):
        grants = [one for account in service.processor.ledger.accounts.values() for one in account.grants.values()]
        assert {one.decoded for one in grants} == {None}
        assert len({id(one.calibration) for one in grants}) == 1

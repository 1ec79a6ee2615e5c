"""The benchmark's ledger, at a size at which it can be checked: it holds what was opened, and so does what is restored of it."""

from __future__ import annotations

from benchmarks.ledger import Service, filled, openings


def figures(service: Service) -> dict[str, tuple[float, float, int]]:
    return {
        name: (record.granted.epsilon, record.left.epsilon, record.streams)
        for name, account in service.processor.ledger.accounts.items()
        if (record := account.to_record())
    }


def test_a_ledger_of_many_grants_is_restored_as_it_was_and_goes_on() -> None:
    service = filled(1_500, 150)
    before = figures(service)
    assert len(before) == 150
    assert {streams for _, _, streams in before.values()} == {10}
    assert all(round(granted + left, 9) == 100.0 and 0.0 < granted <= 0.1 for granted, left, _ in before.values())
    service.restore()
    assert figures(service) == before
    service.send(list(openings(150, 150, 1_500)))
    assert {streams for _, _, streams in figures(service).values()} == {11}
    # A request that comes again, and a name that was used, grant nothing.
    service.send(list(openings(150, 150, 1_500)))
    assert {streams for _, _, streams in figures(service).values()} == {11}


def test_idle_open_stream_takes_at_most_a_kilobyte_and_a_half() -> None:
    """A grant keeps bytes in place of models, and shares its plan; the memory includes a receipt."""
    few, many = filled(500, 5), filled(1_500, 5)
    assert many.memory()[0] - few.memory()[0] <= 1_000 * 1_500
    for service in (few, many):
        grants = [one for account in service.processor.ledger.accounts.values() for one in account.grants.values()]
        assert {one.decoded for one in grants} == {None}
        assert len({id(one.calibration) for one in grants}) == 1

"""A table is renewed while its workers die: each question is answered once, of one version."""

from __future__ import annotations

import pytest

from tests.chaos.ground import Ground

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_a_table_renewed_while_workers_die_is_answered_once_and_of_versions_in_order(ground: Ground) -> None:
    ground.start("budget")
    worker = ground.start("worker")
    await ground.open()
    await ground.ask(600)
    await ground.answered(missing=300)
    worker.kill()
    ground.injected["SIGKILL worker"] += 1
    await ground.refresh()
    # Most have run dry by now.
    await ground.extend("laplace", "noisy-max", "counts")
    worker = ground.start("worker")
    await ground.ask(300)
    await ground.answered(missing=200)
    worker.kill()
    ground.injected["SIGKILL worker"] += 1
    ground.start("worker")
    await ground.answered()
    findings = await ground.verified()
    assert {answer.version for answer in findings.answers} == {None, 2}
    kept = {name for name, grant in findings.grants.items() if "refresh" in (grant.reason or "")}
    assert {"histogram", "lazy", "weights"} <= kept
    assert {"laplace", "counts"}.isdisjoint(kept)

"""A table is renewed while its workers die: each question is answered once, of one version."""

from __future__ import annotations

import pytest

from tests.chaos.loaded_installation import LoadedInstallation

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_refresh_during_kills_answers_each_question_once(
    installation: LoadedInstallation,
) -> None:
    """Versions of the answers are in order."""
    installation.start("budget")
    worker = installation.start("worker")
    await installation.open()
    await installation.ask(600)
    await installation.answered(missing=300)
    worker.kill()
    installation.injected["SIGKILL worker"] += 1
    await installation.refresh()
    # Most streams are exhausted by now.
    await installation.extend("laplace", "noisy-max", "counts")
    worker = installation.start("worker")
    await installation.ask(300)
    await installation.answered(missing=200)
    worker.kill()
    installation.injected["SIGKILL worker"] += 1
    installation.start("worker")
    await installation.answered()
    findings = await installation.verified()
    assert {answer.version for answer in findings.answers} == {None, 2}
    kept = {name for name, grant in findings.grants.items() if "refresh" in (grant.reason or "")}
    assert {"histogram", "lazy", "weights"} <= kept
    assert {"laplace", "counts"}.isdisjoint(kept)

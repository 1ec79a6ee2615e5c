"""Audits privacy statistically: computes lower bounds on the privacy loss from published answers.

Reading order: ``audit_cases``, ``shipped_cases``, ``auditor``, ``event_search``.
"""

from stream.dev.audit.audit_cases import AuditError, Case, Side
from stream.dev.audit.auditor import FALSE_ALARM, Finding, audit_all
from stream.dev.audit.shipped_cases import SHIPPED, cases_of

__all__ = ["FALSE_ALARM", "SHIPPED", "AuditError", "Case", "Finding", "Side", "audit_all", "cases_of"]

"""A statistical auditor: lower bounds on the privacy loss of the running installation, seen from outside alone."""

from stream.audit.auditor import FALSE_ALARM, Finding, audit_all
from stream.audit.cases import AuditError, Case, Side
from stream.audit.shipped import SHIPPED, cases_of

__all__ = ["FALSE_ALARM", "SHIPPED", "AuditError", "Case", "Finding", "Side", "audit_all", "cases_of"]

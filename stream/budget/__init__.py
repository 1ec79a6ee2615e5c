"""The budget service: processes requests and charges, writes ledger and control events.

Order of reading: ``budget_processor``, ``request_handler``, ``openings``, ``decision_records``.
Commands that must not import NumPy use some of these modules, but not ``budget_processor``.
"""

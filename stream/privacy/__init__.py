"""Everything that privacy rests on: noise, mechanisms, composition, planning and the ledger."""

"""Tables whose codes a database on local disk holds and counts: they may be larger than memory."""

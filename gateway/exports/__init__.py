"""Files for other tools: FOCUS, the ledger as it is, statements, and the schedule that writes them."""

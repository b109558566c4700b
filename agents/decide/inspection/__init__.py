"""How a decision loop is looked at while it runs: what it remembers, counts and tells, and the targets set by hand."""

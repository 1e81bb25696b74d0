"""Bad nodes: remembered in a ledger, left out of later jobs."""

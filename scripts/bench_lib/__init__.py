"""What scripts/bench is made of: launchers, groups of agents, measures, the table."""

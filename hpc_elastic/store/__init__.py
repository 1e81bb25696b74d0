"""A shared directory as a store: exclusive numbered records, one-writer files, facts in names."""

"""The subjects of the parts of an agent share: its log, its journal entries, its requests and hooks."""

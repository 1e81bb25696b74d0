"""The commands that people type, a module each."""

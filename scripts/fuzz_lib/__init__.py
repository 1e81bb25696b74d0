"""scripts/fuzz: every reader and parser, fed with what damage and other people make."""

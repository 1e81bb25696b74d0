"""What `scripts/test` knows of its phases: how long each took, what of it was computing, and its tests."""

"""What a drill showed, in words."""

"""The findings of a drill, in words."""

"""What ``hpc-elastic status`` prints below its first line, and for a folder of runs."""

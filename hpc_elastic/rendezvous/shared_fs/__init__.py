"""The rendezvous handler ``shared_fs``: our meeting behind torch's interface."""

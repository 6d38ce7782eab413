"""Holds `api_cli` (the command line) and `api_server` (the entry point), where the real package has them."""

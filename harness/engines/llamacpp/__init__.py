"""llama.cpp: the embedded server, and llama-server."""

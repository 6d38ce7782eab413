"""harness: end-to-end regression runs of LLM inference servers, with evidence and a verdict."""

__version__ = "0.1.0"

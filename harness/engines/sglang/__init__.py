"""SGLang, and its router."""

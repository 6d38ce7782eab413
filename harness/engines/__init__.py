"""One file per inference server. The dict is the whole plug-in system."""

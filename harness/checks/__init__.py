"""One file per check. The dict is the whole plug-in system."""

"""What is kept: the run directory, the record, fingerprints, and the recording proxy."""

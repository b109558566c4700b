"""The benchmarks of ``reinet bench``, one file each."""

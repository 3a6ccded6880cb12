"""Measurements: timing, experiments, the ladder of kernels, the compiler's reports, the error budget, the records."""

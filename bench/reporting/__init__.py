"""Reports, plots, command-line options and statistics that the benchmarks share."""

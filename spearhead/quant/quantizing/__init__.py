"""The parts of a quantisation run: checks, layers, work folder, shards, report."""

"""Benchmarks: each prints tables for people and, as the last line, one JSON document."""

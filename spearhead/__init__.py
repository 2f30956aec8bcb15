"""Spearhead: speculative decoding as three gRPC services."""

__version__ = "0.1.0"
PROTOCOL_VERSION = 1

"""Generated from protos/spearhead/v1; see tools/generate_protos.py."""

"""Every benchmark of the kernels in one run: ``python -m kernels.bench_all --out FOLDER``."""

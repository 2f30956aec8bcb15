"""The decoder on one CUDA device: the kernels of :mod:`kernels`, behind the interface of the CPU path."""

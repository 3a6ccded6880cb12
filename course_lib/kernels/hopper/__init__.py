"""Kernels for compute capability 9.0, in Gluon: warp groups with different jobs, joined by barriers (lesson 15)."""

"""Shared parts of ``limelight bench`` and ``benchmarks/``: cases, peers, the machine, measuring and tables."""

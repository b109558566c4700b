"""Measuring what agents do: side-by-side runs, simulator against kernel, and pictures of both."""

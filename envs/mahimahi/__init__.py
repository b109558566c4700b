"""Mahimahi as a link: real packets of the real kernel through an emulated bottleneck."""

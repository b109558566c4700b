"""Suites: agents x congestion controls x traces x links as a file, run into a store, told as one report.

definition -> plan -> runner -> store -> statistics -> report, pictures
"""

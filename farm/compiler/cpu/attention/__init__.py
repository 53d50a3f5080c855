"""Attention, for a few rows of queries at a time.

compute   choose the tiles, and define the loops
schedule  compute all steps of some rows while their scores are in the cache
"""

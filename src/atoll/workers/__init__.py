"""Reconcilers: each looks for rows whose intent and observation differ, acts, commits. Woken, and on a timer.

A crash at any line is repaired by the ordinary pass of the next life; there is no other recovery.
"""

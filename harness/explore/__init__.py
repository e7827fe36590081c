"""Tries the orders in which a few actors' steps can happen: all of them, those that matter, or a seeded sample.

Everything in here is a function of a program and an `Execution` (executor.py), which lets one thing move at a time.
Stateless: every order is executed from a reset, and nothing of an earlier one is kept but what was seen of it.
"""

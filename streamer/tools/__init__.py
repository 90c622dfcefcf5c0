"""The commands that measure, check and plan: audit, bench, demo, doctor, explain and plan.

`cli/main.py` imports the module of each command by name; no other package imports anything from here.
"""

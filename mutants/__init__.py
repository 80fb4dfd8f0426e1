"""Planted faults: the tests are tried with them (run.py), and so are learners (mystery.py)."""

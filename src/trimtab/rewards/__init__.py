"""Judging completions: rules, and functions of users in processes of their own."""

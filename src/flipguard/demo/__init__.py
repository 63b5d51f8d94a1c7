"""The whole story on generated data: train, compare, judge, and a page to read."""

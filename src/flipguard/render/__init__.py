"""What a person reads: the terminal and Markdown."""

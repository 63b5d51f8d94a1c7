"""Faster and smaller training steps: captured graphs, compiled parts, and less memory."""

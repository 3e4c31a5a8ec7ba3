"""Sandboxes of dsec for other people's harnesses. Each module needs the harness's own package."""

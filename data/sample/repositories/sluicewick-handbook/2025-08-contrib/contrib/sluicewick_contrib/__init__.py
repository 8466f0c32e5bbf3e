"""Contributed loaders and outlets."""

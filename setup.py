"""Metadata is in pyproject.toml; this file lets older tools call setuptools."""

from setuptools import setup

setup()

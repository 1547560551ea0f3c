"""Build the native libraries; metadata and options live in ``setup.cfg``."""

from setuptools import setup

setup(ext_modules=[])

"""What torch's test helpers import of `expecttest`, for where it is not installed.

Inline expectations are not compared: none of the distributed tests has one.
"""

import unittest


class TestCase(unittest.TestCase):
    """The class that torch's own TestCase derives from."""

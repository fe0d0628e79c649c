# SPDX-License-Identifier: Apache-2.0
"""isobit's oracle: the integer arithmetic, written a second time from the specification alone.

Standard library only. Nothing here is fast; everything is meant to be read beside
the text of the specification, section by section.
"""

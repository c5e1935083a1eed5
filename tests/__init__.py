"""Tests: one behaviour each; tests/oracle has the reference implementation as judge."""

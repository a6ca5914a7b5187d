"""Unit tests of PromQL: Prometheus' own promtool, and series to evaluate with."""

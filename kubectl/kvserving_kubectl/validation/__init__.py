"""Manifests against the CRDs' own schemas and rules, without a cluster."""

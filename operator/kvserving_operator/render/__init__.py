"""Pure functions from a spec to Kubernetes objects: no clock, no client, randomness handed in."""

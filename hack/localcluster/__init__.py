"""A real Kubernetes on this machine, built from Go modules: `python3 hack/localcluster --help`.

Standard library only, because the tool runs before any environment exists.
"""

"""What the operator's tests stand on: a cluster in memory, engines over HTTP, a clock."""

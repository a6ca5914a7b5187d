"""What the tuner's tests share: recorded metrics, servers for them, and a model of an engine."""

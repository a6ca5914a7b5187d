"""What the demo and the end-to-end tests share: kubectl, the chart, and chat load."""

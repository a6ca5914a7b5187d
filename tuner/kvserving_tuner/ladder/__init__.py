"""The ladder: what may be done about a load that is not served well, cheapest and safest first."""

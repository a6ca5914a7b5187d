"""Share of users' requests that a trial's candidates get through a gateway."""

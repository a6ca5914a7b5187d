"""A fleet in all the states that the web view shows, and a browser to look at it."""

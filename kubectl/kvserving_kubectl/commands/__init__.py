"""Commands of the plugin, one module each: `HELP`, `configure(parser)` and `run(context)`."""

"""Commands of the plugin, one module each: `configure(parser)` and `run(context)`."""

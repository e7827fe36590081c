"""The `fencepost` command, one module per subcommand."""

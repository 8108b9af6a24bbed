"""The `prefixhash` command, one module per subcommand."""

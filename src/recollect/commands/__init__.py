"""What each command does beyond parsing; one module for each, named as the command is."""

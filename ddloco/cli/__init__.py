"""The command line: its options, what each command does, and the exit codes."""

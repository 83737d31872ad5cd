"""The command line: what people type, what each command does, and its exit code."""

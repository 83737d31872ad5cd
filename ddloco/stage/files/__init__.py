"""The files of a run: its folder, its settings as TOML, addresses, and who recorded it."""

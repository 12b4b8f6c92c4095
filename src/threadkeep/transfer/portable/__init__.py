"""The portable file: its format, export, import and redaction. May import from `transfer` itself, never from `sources/`."""

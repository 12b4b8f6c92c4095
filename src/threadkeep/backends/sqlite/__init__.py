"""The SQLite dialect: its schema and the SQL blocks that differ from the shared ones."""

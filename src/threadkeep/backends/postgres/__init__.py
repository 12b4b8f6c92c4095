"""The PostgreSQL dialect: its schema, loads and commits in one statement, and pgvector."""

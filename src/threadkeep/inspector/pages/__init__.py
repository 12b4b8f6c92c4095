"""The pages of the inspector, one module each: `page(shown, query)` returns what the template shows."""

"""ClickHouse: SQL text, catalog and transport."""

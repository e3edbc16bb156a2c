"""cdcwatch: closes orders at their deadline from PostgreSQL's logical replication stream."""

__version__ = "0.1.0"

"""Due deadlines to optimistic-lock UPDATEs and their outcomes."""

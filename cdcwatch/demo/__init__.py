"""`cdcwatch demo`: a shop, its orders and cdcwatch on servers of its own, watched live and compared at the end."""

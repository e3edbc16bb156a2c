"""Changes to deadline events, and the ordered schedule of what is due. Pure."""

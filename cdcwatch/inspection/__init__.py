"""What a DBA asks of the whole: what a slot holds, what skipping it loses, how long it lasts, an order's story.

Reads the server, the slot and the topic; writes nothing.
"""

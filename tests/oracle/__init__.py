"""What must be true in the end, judged from outside: the ledger of committed SQL, the table, and the topic.

Nothing of cdcwatch is imported here but its name for an LSN: the rule is written a second time, from the contract.
"""

"""The examples below every command's `--help`."""

from typing import Final

_EXAMPLES: Final = {
    "": ["cdcwatch check", "cdcwatch slot create", "cdcwatch run", "cdcwatch events --follow"],
    "check": [
        "cdcwatch check -c shop.toml",
        "cdcwatch check --json | jq -r '.checks[] | select(.state==\"fail\").remedy'",
    ],
    "run": [
        "cdcwatch run -c shop.toml",
        "cdcwatch run --until current    # catch up and end",
        "cdcwatch run --accept-gap       # at a gap: read the table again",
    ],
    "sweep": ["cdcwatch sweep", "cdcwatch sweep --once --json    # from cron"],
    "recover": ["cdcwatch recover --dry-run    # what is wrong, and what it would do", "cdcwatch recover --yes"],
    "snapshot": ["cdcwatch snapshot -c shop.toml    # run must be stopped"],
    "top": ["cdcwatch top", "cdcwatch top --once", "cdcwatch top --once --json | jq .rates"],
    "pending": ["cdcwatch pending", "cdcwatch pending -n 5 --json"],
    "events": [
        "cdcwatch events --follow --type expired",
        "cdcwatch events --key 4711 --from-beginning",
        "cdcwatch events --from-beginning --json | jq -c '{id, type, subject}'",
        "cdcwatch events --dead --json | jq -r .input_hex | xxd -r -p    # the row",
    ],
    "schema": ["cdcwatch schema > deadline-event.avsc", "cdcwatch schema --register -c shop.toml"],
    "explain": [
        "cdcwatch explain 4711",
        "cdcwatch explain eu 4711 --json    # a key of two columns",
        "cdcwatch explain -- -5             # a key that begins with a minus",
    ],
    "demo": ["cdcwatch demo", "cdcwatch demo --for 20s --json", "cdcwatch demo --tables several"],
    "slot": ["cdcwatch slot create --dry-run", "cdcwatch slot create", "cdcwatch slot status"],
    "slot create": [
        "cdcwatch slot create --dry-run               # check, and print the SQL",
        "cdcwatch slot create --timeout 60",
        "cdcwatch slot create --plugin pgoutput --failover",
        "cdcwatch slot create --snapshot              # after a slot was lost",
    ],
    "slot status": [
        "cdcwatch slot status",
        "cdcwatch slot status --watch --interval 5s",
        "cdcwatch slot status --max-lag 256MB --min-time-left 12h || page-the-dba",
        "cdcwatch slot status --json | jq .time_to_loss_s",
    ],
    "slot list": ["cdcwatch slot list", "cdcwatch slot list --json | jq -r '.[].name'"],
    "slot peek": ["cdcwatch slot peek", "cdcwatch slot peek -n 100 --explain"],
    "slot advance": [
        "cdcwatch slot advance --to current",
        "cdcwatch slot advance --to 0/1A2B390 --yes",
    ],
    "slot drop": ["cdcwatch slot drop", "cdcwatch slot drop --yes"],
}


def examples(command: str) -> str:
    """For a command's epilog: a block that is not wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in _EXAMPLES[command])

"""`nearhit …`: the command line. One file per group of commands; each is imported only when it is called for.

Knows: names of commands and what they are for. Does not know: what they do. Exit codes: 0 done, 1 the thing asked about
is wrong (the message says the mend), 2 wrong usage.
"""

import sys

from cyclopts import App

from gateway import __version__

_GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "keys": (
        "Keys of applications and people.",
        {"create": "Make a key.", "list": "List keys.", "rotate": "Give a key a new secret.", "revoke": "Stop a key."},
    ),
    "budgets": (
        "Limits on spend.",
        {"set": "Set a limit.", "list": "Where every limit stands.", "retire": "Take one out."},
    ),
    "prices": (
        "What tokens cost.",
        {
            "show": "The price of models.",
            "set": "Set a price.",
            "check": "Models in use without a price.",
            "engine": "Price an engine by what was measured.",
            "breakeven": "From which load on an engine is cheaper.",
            "calculate": "What a use would cost.",
        },
    ),
    "cache": (
        "Kept answers.",
        {
            "stats": "How the cache does.",
            "search": "Kept answers by words.",
            "explain": "Why a request was a hit or a miss.",
            "purge": "Take kept answers out.",
            "tune": "What other error budgets would have done.",
            "warm": "Fill the cache from a file or from the log.",
        },
    ),
    "ledger": (
        "Checks of the books.",
        {
            "verify": "Rebuild every balance.",
            "reconcile": "Compare with a provider's bill.",
            "invoice": "Compare with a provider's invoice, by model and day.",
            "adjust": "Correct what an attempt cost.",
        },
    ),
    "export": (
        "Files for other tools.",
        {
            "focus": "A month as FOCUS 1.2 or 1.3.",
            "entries": "The ledger's entries.",
            "distillation": "Prompts and answers of a project that consented.",
            "requests": "Every request.",
            "usage": "Usage and cost by any dimension.",
            "statement": "What each team owes for a month.",
        },
    ),
    "audit": ("Who changed what.", {"list": "The newest changes.", "verify": "Whether the chain of changes is whole."}),
    "db": (
        "The database.",
        {
            "upgrade": "Bring the schema up to date.",
            "current": "Which revision it is at.",
            "copy": "Put all of it into another, empty one: from SQLite to PostgreSQL, or back.",
        },
    ),
    "config": (
        "The configuration.",
        {
            "show": "Every value and where it comes from.",
            "check": "Whether it is valid.",
            "schema": "Its JSON schema.",
        },
    ),
    "engine": ("The bundled engine.", {"bench": "Measure it.", "chat": "Talk to it in this terminal."}),
    "bench": (
        "Measurements; the last line is one JSON object.",
        {
            "gateway": "What the gateway adds to a request.",
            "cache": "How often reuse is right, on labelled data.",
            "engine": "The engine beside others on the same weights and tokens.",
        },
    ),
}
_SINGLE = {
    "serve": ("gateway.cli.serve:serve", "Run the gateway."),
    "demo": ("gateway.cli.serve:demo", "Run the gateway in a throw-away folder."),
    "try": ("gateway.cli.trying:try_prompts", "Ask the running gateway and see what the cache did."),
    "usage": ("gateway.cli.usage:app", "What was used, spent and saved."),
    "months": ("gateway.cli.closing:months", "Every month and whether it is closed."),
    "close": ("gateway.cli.closing:close", "Seal a month."),
    "scripted": ("gateway.cli.scripted:scripted", "Run the deterministic upstream for tests and benchmarks."),
    "init": ("gateway.cli.init:init", "Write a commented nearhit.yaml."),
    "doctor": ("gateway.cli.doctor:doctor", "Check everything and say how to mend what is wrong."),
    "version": ("gateway.cli.version:version", "What is installed."),
}
_FILES = {"config": "configuration"}


def build() -> App:
    """The whole command tree. Only names and one line each: nothing of a command is imported."""
    app = App(name="nearhit", help="A semantic-caching LLM gateway.", version=__version__, result_action="return_value")
    for name, (target, words) in _SINGLE.items():
        app.command(target, name=name, help=words)
    for group, (words, commands) in _GROUPS.items():
        part = App(name=group, help=words)
        for name, line in commands.items():
            module = _FILES.get(group, group)
            part.command(f"gateway.cli.{module}:{name}_{group}", name=name, help=line)
        app.command(part)
    return app


def main(arguments: list[str] | None = None) -> None:
    """The entry point `nearhit`. Prints what is wrong in one sentence instead of a trace."""
    from gateway.cli.wrong import Wrong

    try:
        code = build()(arguments)
    except Wrong as error:
        print(f"nearhit: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a port that is taken, a file that cannot be read or written
        print(f"nearhit: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)

"""`nearhit keys …`."""

from gateway.call import Role
from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of


def create_keys(  # noqa: PLR0913 - one name per flag
    name: str,
    *,
    team: str = "default",
    project: str = "default",
    role: Role = "app",
    models: str | None = None,
    expires: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Make a key and print it, once.

    Parameters
    ----------
    name
        For people: where the key is used.
    team
        Who pays for it. An empty team with a role other than app reaches every team.
    project
        Answers are shared inside one project.
    role
        app calls models; viewer, finance, operator and admin open the control plane and the dashboard.
    models
        Names it may ask for, with commas between. Left out: all.
    expires
        A date, a time or a duration such as 30d.
    """
    body: dict[str, object] = {"name": name, "team": team, "project": project, "role": role, "expires": expires}
    if models:
        body["models"] = [one.strip() for one in models.split(",") if one.strip()]
    with control(settings_of(options)) as gateway:
        made = gateway.ask("POST", "/api/v1/keys", body=body)
    _shown(made, options)


def list_keys(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """List keys, newest first, without their text."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/keys")
    if options.json:
        show.json(found["data"])
        return
    columns = ("id", "name", "team", "project", "role", "models", "state", "last_used", "expires")
    show.table(columns, [[show.text(row[column]) for column in columns] for row in found["data"]])


def rotate_keys(key_id: str, *, overlap: str = "0m", options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Give a key a new secret and print it, once. The old one stops working; the id, budgets and usage stay.

    Parameters
    ----------
    key_id
        The id of a key, or `admin` for the admin key.
    overlap
        How long the old secret works on, such as 24h; at most 30d, not for the admin key. Left out: not at all.
    """
    with control(settings_of(options)) as gateway:
        made = gateway.ask("POST", f"/api/v1/keys/{key_id}/rotate", params={"overlap": overlap})
    _shown(made, options)


def revoke_keys(key_id: str, *, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Stop a key: at once in the worker asked, within a second in every other."""
    with control(settings_of(options)) as gateway:
        gone = gateway.ask("DELETE", f"/api/v1/keys/{key_id}")
    if options.json:
        show.json(gone)
    else:
        show.line(f"{gone['id']} ({gone['name']}) is revoked")


def _shown(made: dict[str, object], options: ReadOptions) -> None:
    if options.json:
        show.json(made)
    else:
        show.line(f"{made['key']}\n(shown once: id {made['id']}, team {made['team'] or 'all'}, role {made['role']})")

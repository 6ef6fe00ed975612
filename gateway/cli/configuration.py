"""`nearhit config …`: what is configured and where each value comes from."""

from gateway.cli import show
from gateway.cli.options import Options, ReadOptions, settings_of
from gateway.cli.wrong import Wrong
from gateway.settings import Settings
from gateway.settings_shown import every


def show_config(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Every value and where it comes from: default, file or environment. Secrets are never shown."""
    rows = every(settings_of(options), options.config, flags=("home",) if options.home is not None else ())
    if options.json:
        show.json([{"name": name, "value": value, "source": source} for name, value, source in rows])
        return
    show.table(("setting", "value", "from"), [[name, show.text(value), source] for name, value, source in rows])


def check_config(*, options: Options = Options()) -> None:  # noqa: B008 - frozen
    """Whether the configuration is valid; exit code 1 and every mistake when it is not."""
    settings = settings_of(options)
    from gateway.config_check import problems

    if found := problems(settings):
        raise Wrong("the configuration is not valid:\n  " + "\n  ".join(found))
    show.line("the configuration is valid")


def schema_config() -> None:
    """The JSON schema of nearhit.yaml."""
    show.json(Settings.model_json_schema())

"""What is said of LiteLLM's settings that are not moved: why, or what does the same here.

Knows: their names. Does not know: any configuration, what is moved.
"""

from collections.abc import Iterable

NONE = "no counterpart"
TIME = (
    "set providers.<name>.first_chunk_timeout (streams) and answer_timeout (whole answers), or send x-nearhit-timeout"
)
_RETRIES = "retries are bounded by a budget of a fifth of all requests"
_CIRCUITS = "circuits open after five failures in a row"
_ANSWERED = (
    "a field that an upstream cannot honour is a 400 that names it; fields that OpenAI does not define are sent on"
)
_SENT = "nothing is added to requests here: let clients send it"
_PRICE = "set a price by `nearhit prices set`"
_GUARDS = "there are no guardrails here: keep them before the gateway or in the application"
_BUDGET = "set `budgets` by org, team, project, key, user, model or tag (docs/budgets.md)"
_KEYED = "who asks is known by a key of nearhit (`nearhit keys create`)"
_PEOPLE = "people sign in at the dashboard by `oidc` (docs/identity.md)"
_HEALTH = "upstreams are judged by the requests they answer (/health/upstreams); none are made for that"
_TOLD = "metrics and traces are built in (telemetry.otlp)"
_ALERTS = "set `alerts` and the alerts of a budget (docs/budgets.md)"
_LEDGER = "every request is in the ledger, which cannot be switched off"
_CONTENT = "prompts are in traces with telemetry.capture_content alone, answers never"
_MCP = "clients reach MCP servers themselves; OpenAI's own `mcp` tool passes through /v1/responses"
_REDIS = "see `redis` at the top level"
_ROLE = "no role or profile is assumed here: give an access key or a Bedrock API key"
_ENTRA = "no token is fetched from Entra here: give a key, or a token that is kept fresh elsewhere as a header"
_VERTEX = "Vertex is not spoken here: Google's models are reached with an API key (kind gemini)"
_TAGS = "no deployment is chosen by tags: give it a model of its own"
_HEADERS = "headers of clients stay here; those for an upstream are written under providers.<name>.headers"
_FILES = "files and batches are kept here, or handed on with providers.<name>.batch (docs/providers.md)"
_DESCRIBES = "it only describes the model to clients"

NOT_NEEDED = {  # router_settings that are always on here, or settled otherwise
    "num_retries": _RETRIES,
    "allowed_fails": _CIRCUITS,
    "cooldown_time": "circuits are tried again after 1 s, then 2, 4, … 30 s",
    "retry_after": "an upstream's Retry-After is always kept",
    "enable_pre_call_checks": "context windows are always checked",
    "redis_host": _REDIS,
    "redis_port": _REDIS,
    "redis_password": _REDIS,
    "redis_url": _REDIS,
    "timeout": TIME,
    "stream_timeout": TIME,
    "request_timeout": TIME,
}
TIMES = frozenset({"timeout", "stream_timeout"})
TIMED = TIMES | {"request_timeout"}
_ROUTER = {
    **NOT_NEEDED,
    "max_retries": _RETRIES,
    "retry_policy": _RETRIES,
    "model_group_retry_policy": _RETRIES,
    "allowed_fails_policy": _CIRCUITS,
    "disable_cooldowns": _CIRCUITS,
    "enable_tag_filtering": _TAGS,
    "tag_filtering_match_any": _TAGS,
    "provider_budget_config": _BUDGET,
    "optional_pre_call_checks": "set models.<name>.sticky or strategy: prefix_affine (docs/routing.md)",
    "cache_responses": "see `cache` at the top level",
}
_LIBRARY = {
    "drop_params": _ANSWERED,
    "modify_params": _ANSWERED,
    "turn_off_message_logging": _CONTENT,
    "redact_user_api_key_info": _CONTENT,
    "master_key": "set NEARHIT_ADMIN_KEY; make keys with `nearhit keys create`",
    "mcp_servers": _MCP,
    "mcp_aliases": _MCP,
    "forward_client_headers_to_llm_api": _HEADERS,
    "add_user_information_to_llm_headers": _HEADERS,
    "default_internal_user_params": _BUDGET,
    "max_internal_user_budget": _BUDGET,
    "internal_user_budget_duration": _BUDGET,
    "max_end_user_budget": _BUDGET,
    "default_team_settings": _BUDGET,
    "tag_budget_config": _BUDGET,
    "upperbound_key_generate_params": _BUDGET,
    "custom_provider_map": "a provider of one's own is a file with an entry point (docs/providers.md)",
}
_GENERAL = {
    "store_model_in_db": "models are read from nearhit.yaml alone; those in LiteLLM's database were not moved",
    "supported_db_objects": "models are read from nearhit.yaml alone",
    "store_prompts_in_spend_logs": _CONTENT,
    **dict.fromkeys(("disable_spend_logs", "disable_error_logs", "disable_spend_updates"), _LEDGER),
    "proxy_batch_write_at": "the ledger is written as requests end",
    **dict.fromkeys(
        (
            "alerting",
            "alerting_threshold",
            "alerting_args",
            "alert_types",
            "alert_to_webhook_url",
            "spend_report_frequency",
        ),
        _ALERTS,
    ),
    **dict.fromkeys(
        (
            *("background_health_checks", "health_check_interval", "health_check_details", "use_shared_health_check"),
            *("enable_health_check_routing", "health_check_ignore_transient_errors", "health_check_concurrency"),
        ),
        _HEALTH,
    ),
    **dict.fromkeys(
        ("custom_auth", "custom_auth_settings", "custom_key_generate", "enable_oauth2_auth", "litellm_key_header_name"),
        _KEYED,
    ),
    **dict.fromkeys(
        (
            *("enable_jwt_auth", "litellm_jwtauth", "role_permissions", "custom_sso", "custom_ui_sso_sign_in_handler"),
            *("UI_USERNAME", "UI_PASSWORD", "ui_access_mode", "proxy_admin_email"),
        ),
        f"{_PEOPLE}, programs come with keys",
    ),
    "pass_through_endpoints": "no paths of one's own are passed through (docs/api.md lists what is)",
    **dict.fromkeys(
        ("key_management_system", "key_management_settings"), "secrets come from the environment, as `${NAME}`"
    ),
    "max_request_size_mb": "set server.max_body",
    **dict.fromkeys(
        ("max_parallel_requests", "global_max_parallel_requests"),
        "set server.max_in_flight or providers.<name>.max_in_flight",
    ),
    **dict.fromkeys(
        ("forward_client_headers_to_llm_api", "forward_llm_provider_auth_headers", "forward_openai_org_id"), _HEADERS
    ),
    **dict.fromkeys(
        ("user_header_name", "user_header_mappings"), "clients name their user by `user` or x-nearhit-user"
    ),
    **dict.fromkeys(("max_budget", "budget_duration"), _BUDGET),
    **{name: why for name, why in NOT_NEEDED.items() if name != "enable_pre_call_checks"},
    "max_retries": _RETRIES,
    "drop_params": _ANSWERED,
    "otel": _TOLD,
}
_PARAMS = {
    **dict.fromkeys(
        (
            *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "seed", "n", "user"),
            *("presence_penalty", "frequency_penalty", "logit_bias", "reasoning_effort", "thinking", "verbosity"),
            *("extra_body", "stream", "stream_options", "response_format", "web_search_options", "num_ctx"),
            *("keep_alive", "service_tier", "tools", "tool_choice", "dimensions", "input_type", "safety_settings"),
            *("guardrailConfig", "performanceConfig", "serviceTier", "requestMetadata", "metadata", "think"),
        ),
        _SENT,
    ),
    **dict.fromkeys(("tags", "tag_regex"), _TAGS),
    **dict.fromkeys(
        (
            *("aws_role_name", "aws_session_name", "aws_profile_name", "aws_web_identity_token", "aws_sts_endpoint"),
            "aws_external_id",
        ),
        _ROLE,
    ),
    **dict.fromkeys(
        (
            *("azure_ad_token", "tenant_id", "client_id", "client_secret", "azure_username", "azure_password"),
            *("azure_scope", "azure_ad_token_provider"),
        ),
        _ENTRA,
    ),
    **dict.fromkeys(("vertex_project", "vertex_location", "vertex_credentials"), _VERTEX),
    **dict.fromkeys(("drop_params", "additional_drop_params", "allowed_openai_params", "modify_params"), _ANSWERED),
    "guardrails": _GUARDS,
    "mock_response": "`nearhit scripted` is an upstream without a model",
}
_INFO = {
    "access_groups": "name the models at each key (`nearhit keys create --models`)",
    **dict.fromkeys(
        ("max_input_tokens", "max_tokens", "context_window"),
        "where the bundled table does not know the window, write `context` at the place in the route",
    ),
    **dict.fromkeys(
        ("health_check_timeout", "health_check_max_tokens", "health_check_model", "disable_background_health_check"),
        _HEALTH,
    ),
    "team_id": _KEYED,
}
_TOP = {
    "guardrails": _GUARDS,
    "mcp_servers": _MCP,
    "mcp_tools": _MCP,
    "files_settings": _FILES,
    "finetune_settings": NONE,
    "callback_settings": _TOLD,
    "budgets": _BUDGET,
    "virtual_keys": _KEYED,
}
_LISTS = {
    "router_settings": _ROUTER,
    "litellm_settings": _LIBRARY,
    "general_settings": _GENERAL,
    "litellm_params": _PARAMS,
    "model_info": _INFO,
    "": _TOP,
}


def why(part: str, name: str) -> str:
    """Of one setting of that part of the file (`""`: of the file itself)."""
    if (known := _LISTS[part].get(name)) is not None:
        return known
    if "callback" in name:
        return _TOLD
    if part in ("litellm_params", "model_info") and ("cost" in name or "price" in name):
        return _PRICE
    return _DESCRIBES if part == "model_info" else NONE


def by_reason(part: str, names: Iterable[str]) -> list[str]:
    """`name, name: why`, one for each reason."""
    told: dict[str, list[str]] = {}
    for name in sorted(names):
        told.setdefault(why(part, name), []).append(name)
    return [f"{', '.join(same)}: {reason}" for reason, same in told.items()]

"""What OpenAI and Anthropic publish about their APIs, as their own clients are typed, and a gateway asked by it."""

"""Wire languages of other services, as small fakes: what they answer to a well-formed request, event by event."""

"""Real traffic of other people's recordings through our providers: what is read alike, refused, or lost."""

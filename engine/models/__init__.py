"""Model families as data (`spec`), one decoder for them all (`decoder`), their weights (`loader`, `tiny`)."""

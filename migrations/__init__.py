"""The history of the schema, one idea per file under `versions/`, each tested up and down on both databases."""

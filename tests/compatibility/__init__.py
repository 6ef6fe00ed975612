"""Other people's clients against nearhit, and the page that says how they fared: `python -m tests.compatibility`."""

"""A process that does nothing for ten minutes: `python -m tests.flow.idle`."""

import time

if __name__ == "__main__":
    time.sleep(600)

"""``python -m scheduler_service --config scheduler.toml``."""

import sys

from scheduler_service.config import SchedulerConfig
from scheduler_service.serving import serve
from spearhead.rpc import main

if __name__ == "__main__":
    sys.exit(main("scheduler_service", SchedulerConfig, serve))

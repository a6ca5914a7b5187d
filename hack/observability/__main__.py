"""`python -m observability`: the chart's alert rules and dashboards."""

import sys

from kvserving_operator.api.generated import run
from observability import rules
from observability.dashboards import dashboard_files

if __name__ == "__main__":
    sys.exit(
        run(
            "alert rules and dashboards",
            lambda: {rules.PATH: rules.rule_file(), **dashboard_files()},
        )
    )

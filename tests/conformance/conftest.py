"""A skip that is not in the table of reasons is a failure, with the release of Transformers that the table is for."""

from __future__ import annotations

import pytest
from helpers.skips import OF_THIS_RELEASE, reason_for


def pytest_collection_modifyitems(items):
    for item in items:  # upstream's tests look for the warnings of renamed arguments, which ours do without
        if item.path.parent.name == "conformance":
            item.add_marker(pytest.mark.filterwarnings("default::FutureWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    unexplained = report.skipped and item.cls is not None and report.when == "call" and reason_for(item.name) is None
    if unexplained and OF_THIS_RELEASE:
        report.outcome = "failed"
        report.longrepr = f"{item.name} skipped without a written reason in skips.py: {report.longrepr}"
    return report

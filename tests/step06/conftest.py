"""Which tests of this step stay together when two workers share them (`make test-step6`)."""

from __future__ import annotations

from typing import Any

import pytest

# To import transformers takes longer than all that these tests do with it, and the tests of
# fine-tuning share a run: so one worker has all of a file. All other tests go one by one.
TOGETHER = ("test_huggingface.py", "test_finetune.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(TOGETHER) else nodeid

    return FilesTogether(config, log)

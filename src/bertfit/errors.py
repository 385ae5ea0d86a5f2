"""Every error that a user can meet, as one tree.

```
BertfitError            exit code 2: something the user can fix
├── ConfigError         settings that are wrong or contradict each other
├── DataError           a file that cannot be read as asked
├── ModelError          a model or tokenizer that cannot be used
├── BudgetError         exit code 3: it does not fit, with the numbers
└── Interrupted         exit code 75: stopped, and the same command goes on
```

Anything else that escapes is our own defect and keeps its traceback.
"""


class BertfitError(Exception):
    """What is wrong, where, what was allowed, and what to do next: in one message."""

    exit_code = 2


class ConfigError(BertfitError):
    """A setting, or several, that cannot be used; all faults are in one message."""


class DataError(BertfitError):
    """Data that cannot be read as asked; the message names file and line."""


class ModelError(BertfitError):
    """A model folder, hub id or tokenizer that cannot be used."""


class BudgetError(BertfitError):
    """The job does not fit the memory it was given."""

    exit_code = 3


class Interrupted(BertfitError):
    """The work was stopped from outside and can be resumed."""

    exit_code = 75

"""What transformers writes into its log, held back until it is known whether there is an answer."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bertfit.errors import BertfitError


class _Held(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, logging.LogRecord] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.records.setdefault(record.getMessage(), record)


@contextmanager
def log_held_back() -> Iterator[None]:
    """Keep the log of transformers until the end, each line once; drop it where there is an error.

    An error of ours says in one line what is wrong; lines about the same before it hide that. With
    an answer they come out: nothing that transformers warns of is lost. Not for long work, whose
    warnings should come at once.
    """
    import transformers

    transformers.logging.get_logger()  # its handler is made now, not in between
    logger, held = logging.getLogger("transformers"), _Held()
    before = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [held], False
    wanted = True
    try:
        yield
    except BertfitError:
        wanted = False
        raise
    finally:
        logger.handlers[:], logger.propagate = before
        for record in held.records.values() if wanted else ():
            logger.handle(record)

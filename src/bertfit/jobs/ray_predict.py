"""The one door to Ray: the work of `predict` spread over processes, here or on a cluster.

One task reads the texts and cuts them into the chunks that one process would cut; actors, each with
a `Predictor` of its own, tag them; this process writes what comes back, in order. Ray Data holds
back the reader while the actors are busy. The chunks are those of one process, so is the output.
"""

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bertfit.data.formats import ProblemLog
from bertfit.errors import ConfigError
from bertfit.jobs.inputs import STDIN, TextInput
from bertfit.jobs.predict import Found, Predictor
from bertfit.jobs.predict_file import Results, chunks_of, tag_chunk
from bertfit.jobs.stream_job import FileJob, Worked
from bertfit.language import _
from bertfit.types import Problem

if TYPE_CHECKING:
    import pyarrow

Make = Callable[[], Predictor]
_PICKLED = "chunk"  # the one column of the tables between the processes


class _Told(ProblemLog):
    """Hands on what it is told, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[Problem] = []
        self._dropped_before = 0

    def add(self, problem: Problem) -> None:
        self._new.append(problem)

    def take(self) -> tuple[list[Problem], int]:
        """Return the problems, and how many records were dropped, since it was last asked."""
        new, self._new = self._new, []
        dropped = self.records_dropped - self._dropped_before
        self._dropped_before = self.records_dropped
        return new, dropped


def _table(value: object) -> "pyarrow.Table":
    import pyarrow

    return pyarrow.table({_PICKLED: pyarrow.array([pickle.dumps(value)], pyarrow.large_binary())})


class _Tagging:
    """What an actor does: a model, and chunks one by one."""

    def __init__(self, make: Make) -> None:
        self._predictor = make()

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        (packed,) = table[_PICKLED].to_pylist()
        chunk, problems, dropped = pickle.loads(packed)
        if chunk is None:
            return _table((None, problems, dropped))
        worked = tag_chunk(self._predictor, chunk, problems.append)
        return _table((worked, problems, dropped))


def _read(make: Make, job: FileJob, done: int) -> Iterator["pyarrow.Table"]:
    told = _Told()
    for chunk in chunks_of(make(), job.source(told), done):
        yield _table((chunk, *told.take()))
    yield _table((None, *told.take()))


def over_ray(make: Make, job: FileJob, log: ProblemLog) -> Callable[[TextInput], Results]:
    """Return what tags a job's texts with Ray, for `predict_file`.

    Args:
        make: loads the predictor, in every process that needs one.
        job: its input must be readable where the tasks run: a shared folder, on a cluster.
        log: told of what cannot be read or tagged.

    Raises:
        ConfigError: Ray is not installed, or the input is a stream that only this process has.
    """
    if find_spec("ray") is None:
        raise ConfigError(_("--ray: Ray is not installed. pip install 'bertfit[ray]'"))
    if job.input == STDIN:
        raise ConfigError(
            _("--ray: the other processes cannot read this one's standard input. Name a file.")
        )

    def results(done: int, between: Callable[[], None]) -> Iterator[Worked[list[Found]]]:
        for packed in _run(make, job, done):
            worked, problems, dropped = pickle.loads(packed)
            for problem in problems:
                log.add(problem)
            log.records_dropped += dropped
            if worked is not None:
                yield worked
            between()

    return lambda source: results


def _run(make: Make, job: FileJob, done: int) -> Iterator[bytes]:
    import ray
    from ray.data import DataContext, Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class Chunks(Datasource):  # type: ignore[misc]
        """One reader, since what a chunk holds depends on all that was read before it."""

        def get_read_tasks(self, parallelism: int, *args: Any, **more: Any) -> list[ReadTask]:
            unknown = BlockMetadata(
                num_rows=None, size_bytes=None, input_files=None, exec_stats=None
            )
            return [ReadTask(lambda: _read(make, job, done), unknown)]

        def estimate_inmemory_data_size(self) -> None:
            return None

    # What Ray says of its plans at the level of news is not for whoever tags texts.
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    begun = not ray.is_initialized()
    if begun:
        ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        cards = int(ray.cluster_resources().get("GPU", 0))
        cores = int(ray.cluster_resources().get("CPU", 1))
        # The reader asks for no core: else one machine with one core would wait for itself.
        chunks = ray.data.read_datasource(Chunks(), override_num_blocks=1, num_cpus=0)
        tagged = chunks.map_batches(
            _Tagging,
            fn_constructor_args=(make,),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0 if cards else 1,
            num_gpus=1 if cards else 0,
            compute=ray.data.ActorPoolStrategy(size=cards or cores),
        )
        for row in _rows(tagged):
            yield row[_PICKLED]
    finally:
        if begun:
            ray.shutdown()


def _rows(dataset: Any) -> Iterable[dict[str, bytes]]:
    rows: Iterable[dict[str, bytes]] = dataset.iter_rows()
    return rows

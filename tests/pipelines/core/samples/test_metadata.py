import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.samples.metadata import Columns, Row, read

COLUMNS = Columns("path", "label", "split")
PLAIN = [Row(2, "a.png", "cat", "train", ""), Row(3, "b.png", "dog", "test", "")]


def csv(text: str, columns: Columns = COLUMNS) -> list[Row]:
    return read(text.encode(), "labels.csv", columns)


def parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "path,label,split\na.png,cat,train\nb.png,dog,test\n",
        "\ufeffpath,label,split\r\na.png,cat,train\r\nb.png,dog,test",
        " Path , LABEL,Split\n a.png ,cat , train\n b.png,  dog,test  \n",
        'split,path,more,label\ntrain,"a.png","x, y",cat\ntest,b.png,,dog\n',
        'path,label,split\n"a.png", "cat", "train"\nb.png,dog,test,,\n',
    ],
)
def test_csv_is_read_as_people_write_it(text: str) -> None:
    assert csv(text) == PLAIN


def test_csv_in_utf_16_and_tsv_are_read() -> None:
    text = "path\tlabel\tsplit\na.png\tcat\ttrain\nb.png\tdog\ttest\n"
    assert read(text.encode("utf-16"), "labels.TSV", COLUMNS) == PLAIN


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32"])
def test_csv_in_another_encoding_is_told_as_such(encoding: str) -> None:
    with pytest.raises(HeadraceError, match=r"not UTF-8(.|\n)*iconv"):
        read("path,label,split\na.png,cat,train\n".encode(encoding), "labels.csv", COLUMNS)


def test_blank_lines_are_no_rows_and_lines_keep_their_numbers() -> None:
    rows = csv("path,label,split\n\na.png,cat,train\n , ,\nb.png,dog,test\n")
    assert [(row.number, row.path) for row in rows] == [(3, "a.png"), (5, "b.png")]


def test_short_line_lacks_its_last_values() -> None:
    assert csv("path,label,split\na.png\nb.png,dog\n") == [
        Row(2, "a.png", "", "", ""),
        Row(3, "b.png", "dog", "", ""),
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('"a.png"x,cat,train', "not a CSV record: ',' expected after '\"'"),
        ('"a.png,cat,train', "not a CSV record: unexpected end of data"),
        ("a.png,cat,train,more", "4 values in a table of 3 columns"),
        (",cat,train", "no path"),
        ("a\x07.png,cat,train", "a value holds control characters, or bytes that are not UTF-8"),
    ],
)
def test_line_that_makes_no_sense_is_a_row_with_a_fault_and_costs_no_other(
    line: str, fault: str
) -> None:
    rows = csv(f"path,label,split\n{line}\nb.png,dog,test\n")
    assert [row.fault for row in rows] == [fault, ""]
    assert rows[1] == PLAIN[1]


def test_line_that_is_not_utf_8_is_a_row_with_a_fault() -> None:
    rows = read(b"path,label,split\n\xff.png,cat,train\nb.png,dog,test\n", "l.csv", COLUMNS)
    assert [bool(row.fault) for row in rows] == [True, False]


@pytest.mark.parametrize("label", ["7", "7.0", "07", "None", "nan"])
def test_csv_values_are_taken_as_written(label: str) -> None:
    assert csv(f"path,label,split\na.png,{label},\n")[0].label == label


def test_missing_column_is_told_with_the_nearest_and_all_others() -> None:
    with pytest.raises(HeadraceError) as caught:
        csv("path,labels,split\na.png,cat,train\n")
    message = str(caught.value)
    assert "no column 'label'" in message
    assert "labels.csv" in message
    assert "'path', 'labels', 'split'" in message
    assert "Did you mean 'labels'?" in message


def test_column_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(HeadraceError, match="2 columns 'label'"):
        csv("path,label,LABEL ,split\na.png,cat,dog,train\n")


def test_other_separators_are_told_and_not_guessed() -> None:
    with pytest.raises(HeadraceError, match="separated by ';'"):
        csv("path;label;split\na.png;cat;train\n")


@pytest.mark.parametrize("name", ["l.csv", "l.jsonl"])
@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty_file_is_an_error(name: str, data: bytes) -> None:
    with pytest.raises(HeadraceError, match="empty"):
        read(data, name, COLUMNS)


def test_unknown_ending_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(HeadraceError, match=r"\.csv.*\.parquet"):
        read(b"x", "labels.xlsx", COLUMNS)


def test_json_lines_are_read() -> None:
    lines = [
        {"Path": "a.png", "label": "cat", "split": "train", "box": [1, 2]},
        {"split": "test", "label": " dog", "path": "b.png"},
        {"path": "c.png", "label": 3},
        {"path": "d.png", "label": None},
    ]
    text = "\ufeff" + "\n\n".join(map(json.dumps, lines))
    rows = read(text.encode(), "labels.jsonl", COLUMNS)
    assert rows == [
        Row(1, "a.png", "cat", "train", ""),
        Row(3, "b.png", "dog", "test", ""),
        Row(5, "c.png", "3", "", ""),
        Row(7, "d.png", "", "", ""),
    ]


@pytest.mark.parametrize(
    "line", ["{", "[]", '"a"', "[" * 100_000, '{"path": ["a"], "label": "cat"}', '{"label": "x"}']
)
def test_line_that_is_no_json_object_is_a_row_with_a_fault(line: str) -> None:
    text = '{"path": "a.png", "label": "cat", "split": "val"}\n' + line
    rows = read(text.encode(), "labels.ndjson", COLUMNS)
    assert [bool(row.fault) for row in rows] == [False, True]


def test_json_lines_without_a_needed_column_are_an_error() -> None:
    with pytest.raises(HeadraceError, match="no column 'split'"):
        read(b'{"path": "a.png", "label": "cat"}', "labels.jsonl", COLUMNS)


def test_parquet_is_read() -> None:
    table = pa.table(
        {
            "other": [[1], [2], [3]],
            "SPLIT": pa.array(["train", "test", None]).dictionary_encode(),
            "path": ["a.png", " b.png", "c.png"],
            "label": [1.0, float("nan"), 2.5],
        }
    )
    assert read(parquet(table), "labels.parquet", COLUMNS) == [
        Row(1, "a.png", "1", "train", ""),
        Row(2, "b.png", "", "test", ""),
        Row(3, "c.png", "2.5", "", ""),
    ]


def test_parquet_column_of_lists_gives_rows_with_a_fault() -> None:
    table = pa.table({"path": ["a.png"], "label": [["cat"]]})
    (row,) = read(parquet(table), "labels.parquet", Columns("path", "label"))
    assert row.fault == "a value is neither text nor a number"


def test_damaged_parquet_is_an_error_that_names_the_file() -> None:
    data = bytearray(parquet(pa.table({"path": ["a"] * 99, "label": ["b"] * 99})))
    data[:-20] = bytes(len(data) - 20)
    for damaged in (bytes(data), bytes(data[:-3]), b""):
        with pytest.raises(HeadraceError, match=r"labels\.parquet"):
            read(damaged, "labels.parquet", Columns("path", "label"))

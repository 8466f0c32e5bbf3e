from sluicewick.loaders import CsvLoader, JsonLinesLoader


def test_csv_with_mark(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfid,name\r\n1,Ada\r\n2,\r\n")
    assert list(CsvLoader(path)) == [{"id": "1", "name": "Ada"}, {"id": "2", "name": None}]


def test_jsonl_bad_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": \n')
    assert list(JsonLinesLoader(path, on_bad_line="silt"))[1]["_line"] == 2

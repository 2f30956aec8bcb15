from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from spearhead.quant.report.markup import element, number, text, void


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_xml_but_for_what_xml_forbids(value: str) -> None:
    root = ElementTree.fromstring(element("p", {"title": value}, text(value)))
    shown = "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "\ufffd"
        for c in value
    )
    # A reader of XML makes one line end of \r\n and \r.
    assert (root.text or "") == shown.replace("\r\n", "\n").replace("\r", "\n")
    assert text(value).encode("utf-8").decode("utf-8") == text(value)


def test_attributes_cannot_be_left() -> None:
    assert element("p", {"title": '"><script>'}) == '<p title="&quot;&gt;&lt;script&gt;"></p>'


def test_numbers_are_short() -> None:
    assert [number(value) for value in (3.0, 3.456, -0.001, -2.5, 1e6)] == [
        "3",
        "3.46",
        "0",
        "-2.5",
        "1000000",
    ]
    assert void("path", {"x": 1.5}) == '<path x="1.5"/>'
